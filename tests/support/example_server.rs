//! The example server, on a free port of 127.0.0.1. It stops when it is dropped.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub struct ExampleServer {
    pub process: Child,
    pub address: SocketAddr,
    /// The output of the server when it started.
    pub output: String,
}

impl ExampleServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        Self::spawn(Self::command().args(arguments))
    }

    /// Starts a command of [`command`](Self::command).
    pub fn spawn(command: &mut Command) -> Self {
        let process = command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn();
        let mut process = process.unwrap_or_else(|error| {
            panic!("{error}; build it with `cargo build --workspace --all-features --examples`")
        });
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut output = String::new();
        while !output.contains("lists all routes") {
            output += &lines.recv_timeout(Duration::from_secs(20)).expect("the server prints its address");
            output.push('\n');
        }
        let address = output.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("a URL");
        Self { process, address: address.parse().expect("an address"), output }
    }

    /// Returns the command that runs the example. Cargo builds examples beside the folder of test binaries.
    pub fn command() -> Command {
        let mut binary = std::env::current_exe().expect("a path to this test");
        binary.pop();
        binary.pop();
        Command::new(binary.join("examples").join("server"))
    }
}

impl Drop for ExampleServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
