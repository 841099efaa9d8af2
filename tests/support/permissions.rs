//! The permissions that `src/guide/redis.md` grants to the user of a store, and the calls that servers rejected.

use deadpool_redis::redis::{Cmd, Value, cmd};

const DOCUMENTATION: &str = include_str!("../../src/guide/redis.md");

/// Returns the rules of the documented user, in order: `resetkeys`, the key pattern, and the commands.
pub fn documented() -> Vec<&'static str> {
    let (_, rules) = DOCUMENTATION.split_once("ACL SETUSER limits on >secret ").expect("a documented user");
    let (rules, _) = rules.split_once("```").expect("the end of the command");
    rules.split_whitespace().collect()
}

/// Returns the additional permissions for a purpose, such as `a Cluster`.
pub fn documented_for(what: &str) -> Vec<&'static str> {
    let (_, rules) = DOCUMENTATION.split_once(&format!("- {what}: `")).expect("documented permissions");
    let (rules, _) = rules.split_once('`').expect("the end of the permissions");
    rules.split_whitespace().collect()
}

/// Returns the command that creates a user with the password `s3cret` and only these permissions.
pub fn set_user(user: &str, rules: &[&str]) -> Cmd {
    let mut command = cmd("ACL");
    command.arg("SETUSER").arg(user).arg("reset").arg("on").arg(">s3cret").arg(rules);
    command
}

/// Returns all permissions without one of them, for each that grants something.
pub fn each_missing(rules: &[&'static str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let grants = rules.iter().filter(|rule| rule.starts_with(['+', '~']));
    grants.map(|grant| (*grant, rules.iter().copied().filter(|rule| rule != grant).collect())).collect()
}

/// Returns the commands and keys that a server rejected, from its `ACL LOG`.
pub fn rejected(log: &[Value]) -> Vec<String> {
    log.iter().map(|entry| format!("{entry:?}")).collect()
}

/// Returns whether an error names the permissions to grant, and where to find the missing one.
pub fn names_the_remedy(error: &str) -> bool {
    error.contains("ACL SETUSER") && error.contains("ACL LOG")
}
