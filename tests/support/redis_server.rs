//! Redis servers of a test's own, on free ports of 127.0.0.1, which end with the test and leave
//! nothing behind.
#![allow(dead_code, unreachable_pub, reason = "tests within the crate use some of it, too")]

#[path = "folder.rs"]
mod folder;

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, cmd, pipe};
pub use folder::Folder;

/// How long something may take that is bound to happen, on a machine that has much else to do: a Sentinel whose machine
/// stood still rests for 30 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program that tests start as a server: the one that the environment variable `REDIS_SERVER` names, or else
/// `redis-server`.
pub fn program() -> Command {
    Command::new(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server")))
}

/// A server, which keeps its port and its arguments when it is stopped and started again. It starts
/// empty each time, unless it is told to `SAVE`.
pub struct RedisServer {
    process: Option<Child>,
    port: u16,
    args: Vec<String>,
    /// Where it writes what a replica is sent.
    folder: Folder,
}

impl RedisServer {
    /// A server with no password.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`: a machine without it has not run the tests.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more arguments, such as `["--requirepass", "secret"]`.
    pub fn start_with(more: &[&str]) -> Self {
        Self::start_by(|port| {
            let mut args = vec!["--port".to_owned(), port.to_string()];
            args.extend(more.iter().map(|&arg| arg.to_owned()));
            args
        })
    }

    /// A server whose arguments, from the one on that says its port, are made once its port is
    /// known.
    pub fn start_by(args: impl Fn(u16) -> Vec<String>) -> Self {
        // Someone else may take the port before Redis does: it then ends at once.
        let started = (0..5).find_map(|_| {
            let port = free_port();
            let mut server = Self { process: None, port, args: args(port), folder: Folder::new() };
            server.try_start().then_some(server)
        });
        started.expect("redis-server starts on a free port")
    }

    /// A replica of another server, when it has all that that one has.
    pub fn replica_of(master: &Self) -> Self {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        wait_until("the replica is in step", || {
            replica.ask::<String>(cmd("INFO").arg("replication")).contains("master_link_status:up")
        });
        replica
    }

    /// A port that has no server yet: [`start_again`](Self::start_again) starts it.
    pub fn not_started() -> Self {
        let port = free_port();
        Self { process: None, port, args: vec!["--port".to_owned(), port.to_string()], folder: Folder::new() }
    }

    /// Kills it.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it on the port it had.
    pub fn start_again(&mut self) {
        assert!(self.try_start(), "redis-server starts on the port it had");
    }

    /// Kills it, and starts another one on its port.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Stops it in its tracks, as if its machine had vanished: its connections stay open, and
    /// nothing answers.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What it replies to a command, on a connection of its own.
    pub fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_ask(command).expect("a reply")
    }

    pub fn try_ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query(&mut Client::open(self.url())?.get_connection()?)
    }

    /// A connection that waits long for replies.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let client = Client::open(self.url()).expect("a client");
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    fn try_start(&mut self) -> bool {
        let process = program()
            .args(&self.args)
            .args(if self.args.iter().any(|arg| arg == "--sentinel") { &[][..] } else { &SERVER[..] })
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("can't start redis-server: {error}; install it, on Debian by `apt-get install redis-server`")
            });
        let process = self.process.insert(process);
        let started = Instant::now();
        while started.elapsed() < PATIENCE && process.try_wait().expect("its status").is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.stop();
        false
    }

    fn signal(&self, signal: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(status.success(), "kill {signal} {id}: {status}");
    }
}

/// For all but Sentinels, which have a file: neither write to disk what they need not, nor wait for
/// more replicas.
const SERVER: [&str; 10] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--rdb-del-sync-files",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

impl Drop for RedisServer {
    /// # Panics
    ///
    /// When a test that went well leaves a key that never expires.
    fn drop(&mut self) {
        let mut left = Vec::new();
        if self.process.is_some() && !thread::panicking() {
            // One that is paused would be waited for.
            self.resume();
            left = immortal(self.port);
        }
        self.stop();
        assert!(left.is_empty(), "without a time to live: {left:?}");
    }
}

/// The millisecond at which a key expires. (Redis before 7.0 has no `PEXPIRETIME`.)
pub async fn expiry_of(key: &str, connection: &mut MultiplexedConnection) -> u64 {
    loop {
        let mut ask = pipe();
        ask.cmd("TIME").cmd("PTTL").arg(key).cmd("TIME");
        let (before, left, after): ((u64, u64), u64, (u64, u64)) =
            ask.query_async(connection).await.expect("a time to live");
        let [before, after] = [before, after].map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
        if before == after {
            return before + left;
        }
    }
}

/// The keys of limits that never expire, on a server that anyone may ask. Overrides may be meant to.
pub fn immortal(port: u16) -> Vec<String> {
    let ask = || {
        let mut connection =
            Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let keys: Vec<String> = cmd("KEYS").arg("*:{*}:*").query(&mut connection)?;
        let mut immortal = Vec::new();
        for key in keys.into_iter().filter(|key| !key.ends_with(":override")) {
            // One that is gone meanwhile has -2.
            if cmd("PTTL").arg(&key).query::<i64>(&mut connection)? == -1 {
                immortal.push(key);
            }
        }
        RedisResult::Ok(immortal)
    };
    // Who wants a password, or speaks TLS only, is asked the same things by the tests.
    ask().unwrap_or_default()
}

/// Waits for what is bound to happen.
///
/// # Panics
///
/// When it does not.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
