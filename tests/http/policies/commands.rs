//! The program as a user runs it: the commands that it prints work.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use deadpool_redis::redis::cmd;

use crate::policies::example::POLICIES;
use support::countries::database;
use support::redis_server::{Folder, RedisServer};

/// A running program, which stops when it is dropped.
struct Program {
    process: Child,
    /// The commands that the program prints.
    tries: Vec<String>,
    _folder: Folder,
}

impl Program {
    fn start(policy: &str, more: &[&str]) -> Self {
        let folder = Folder::new();
        let mut process = command()
            .env("COUNTRIES", folder.write("countries.mmdb", database(&[("192.0.2.0/24", "NL")])))
            .args([policy, "--listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{error}; build it with `cargo build --workspace --all-features --examples`")
            });
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut program = Self { process, tries: Vec::new(), _folder: folder };
        let mut lines = stdout.lines().map(|line| line.expect("a line"));
        let listens = lines.next().expect("the program says where it listens");
        assert!(listens.starts_with("Listening on http://127.0.0.1:"), "{listens}");
        program.tries = lines.skip(1).take_while(|line| !line.is_empty()).collect();
        program
    }

    /// Returns the printed commands, each with the response in lowercase.
    fn answers(&self) -> impl Iterator<Item = (&str, String)> {
        assert!(!self.tries.is_empty());
        self.tries.iter().map(|line| (line.as_str(), type_in(line)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the output of a shell command, which is repeated while the store is too slow.
fn type_in(line: &str) -> String {
    assert!(line.starts_with("curl -i "), "{line}");
    for _ in 0..200 {
        let output = Command::new("sh").args(["-c", &format!("{line} --silent --show-error")]).output().expect("sh");
        assert!(output.status.success(), "{line}: {output:?}");
        let answer = String::from_utf8(output.stdout).expect("text").to_ascii_lowercase();
        if !answer.starts_with("http/1.1 503 ") {
            return answer;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{line}: Redis is too slow")
}

/// Cargo builds examples next to the folder of the test binaries.
fn command() -> Command {
    let mut binary: PathBuf = std::env::current_exe().expect("a path to this test");
    binary.pop();
    binary.pop();
    let mut command = Command::new(binary.join("examples").join("policies"));
    command.current_dir(support::repository(""));
    command
}

/// Returns the output of a program that exits.
fn ending(arguments: &[&str]) -> Output {
    let mut process = command().args(arguments).stderr(Stdio::piped()).spawn().expect("it runs");
    for _ in 0..400 {
        if process.try_wait().expect("a status").is_some() {
            return process.wait_with_output().expect("the output");
        }
        thread::sleep(Duration::from_millis(50));
    }
    process.kill().expect("it is killed");
    panic!("it runs with {arguments:?}: {:?}", process.wait_with_output())
}

fn check(program: &Program, policy: &str) {
    for (command, answer) in program.answers() {
        let status = answer.split(' ').nth(1).expect("a status");
        // The statuses that a policy is about, and none of a wrong path or body.
        assert!(["200", "201", "401", "402", "429"].contains(&status), "{policy}: {answer}");
        // Staff and operators.
        let is_free = command.contains("staff-4") || command.contains("/admin/");
        assert!(is_free != answer.contains("\nratelimit: \""), "{policy}: {answer}");
    }
}

#[test]
fn the_commands_that_each_policy_prints_work() {
    for (policy, ..) in POLICIES {
        check(&Program::start(policy, &[]), policy);
    }
}

#[test]
fn each_policy_runs_on_redis() {
    let redis = RedisServer::start();
    for (policy, ..) in POLICIES {
        let _: () = redis.ask(cmd("CONFIG").arg("RESETSTAT"));
        let program = Program::start(policy, &["--redis", &redis.url()]);
        check(&program, policy);
        assert!(redis.ask::<String>(cmd("INFO").arg("commandstats")).contains("cmdstat_evalsha"), "{policy}");
    }
}

#[test]
fn unknown_arguments_print_the_usage() {
    let free = ["friends", "--listen", "127.0.0.1:0"];
    for wrong in [&["--redis"][..], &["--rdis", "redis://127.0.0.1"], &["more"]] {
        let output = ending(&[&free, wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    for arguments in [&[][..], &["freinds"]] {
        let output = ending(arguments);
        assert_eq!(output.status.code(), Some(2));
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(reported.contains("[--redis URL]"), "{reported}");
        assert!(POLICIES.iter().all(|(policy, ..)| reported.contains(policy)), "{reported}");
    }
}

#[test]
fn an_unreachable_redis_is_named_in_the_error() {
    let output = ending(&["friends", "--listen", "127.0.0.1:0", "--redis", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains("no connection to Redis"), "{reported}");
}
