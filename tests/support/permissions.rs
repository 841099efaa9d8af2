//! The permissions that src/guide/redis.md grants to the user of a store, and what servers refused.

use deadpool_redis::redis::{Cmd, Value, cmd};

const DOCUMENTATION: &str = include_str!("../../src/guide/redis.md");

/// The rules of the documented user, in order: `resetkeys`, the key pattern, and the commands.
pub fn documented() -> Vec<&'static str> {
    let (_, rules) = DOCUMENTATION.split_once("ACL SETUSER limits on >secret ").expect("a documented user");
    let (rules, _) = rules.split_once("```").expect("the end of the command");
    rules.split_whitespace().collect()
}

/// The permissions that something takes besides: `a Cluster`, say.
pub fn documented_for(what: &str) -> Vec<&'static str> {
    let (_, rules) = DOCUMENTATION.split_once(&format!("- {what}: `")).expect("documented permissions");
    let (rules, _) = rules.split_once('`').expect("the end of the permissions");
    rules.split_whitespace().collect()
}

/// The command that makes a user with the password `s3cret` and these permissions alone.
pub fn set_user(user: &str, rules: &[&str]) -> Cmd {
    let mut command = cmd("ACL");
    command.arg("SETUSER").arg(user).arg("reset").arg("on").arg(">s3cret").arg(rules);
    command
}

/// All permissions with one of them missing, each in turn. What takes permissions away is none.
pub fn each_missing(rules: &[&'static str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let grants = rules.iter().filter(|rule| rule.starts_with(['+', '~']));
    grants.map(|grant| (*grant, rules.iter().copied().filter(|rule| rule != grant).collect())).collect()
}

/// The commands and keys that a server refused, by its `ACL LOG`.
pub fn refused(log: &[Value]) -> Vec<String> {
    log.iter().map(|entry| format!("{entry:?}")).collect()
}

/// Whether an error tells the operator which permissions to grant, and where to read which one was missing.
pub fn names_the_remedy(error: &str) -> bool {
    error.contains("ACL SETUSER") && error.contains("ACL LOG")
}
