//! Redis servers on free ports of 127.0.0.1. They stop when they are dropped.
#![allow(dead_code, unreachable_pub, reason = "tests within the crate use some of it, too")]

#[path = "folder.rs"]
mod folder;
#[path = "free_port.rs"]
pub mod free_port;

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, cmd, pipe};
pub use folder::Folder;
pub use free_port::free_port;

/// The longest time to wait for something that must happen on a loaded machine. A Sentinel whose machine stopped pauses
/// for 30 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the server program: that of the environment variable `REDIS_SERVER`, or `redis-server`.
pub fn program() -> Command {
    Command::new(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server")))
}

/// A server, which keeps its port and its arguments when it is restarted. It restarts empty, unless `SAVE` was sent.
pub struct RedisServer {
    process: Option<Child>,
    port: u16,
    args: Vec<String>,
    /// The folder of its dumps for replicas.
    folder: Folder,
}

impl RedisServer {
    /// Starts a server without a password.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not installed.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, such as `["--requirepass", "secret"]`.
    pub fn start_with(more: &[&str]) -> Self {
        Self::start_by(|port| {
            let mut args = vec!["--port".to_owned(), port.to_string()];
            args.extend(more.iter().map(|&arg| arg.to_owned()));
            args
        })
    }

    /// Starts a server whose arguments depend on its port.
    pub fn start_by(args: impl Fn(u16) -> Vec<String>) -> Self {
        // If another process takes the port before, Redis stops at once.
        let started = (0..5).find_map(|_| {
            let port = free_port();
            let mut server = Self { process: None, port, args: args(port), folder: Folder::new() };
            server.try_start().then_some(server)
        });
        started.expect("redis-server starts on a free port")
    }

    /// Starts a server that has failed to save its data. It accepts writes until `stop-writes-on-bgsave-error` is set.
    pub fn start_unable_to_save() -> Self {
        let server = Self::start();
        // It has started once it replies. Its dump can't replace a folder.
        let () = server.ask(&cmd("PING"));
        std::fs::create_dir(server.folder.path().join("dump.rdb")).expect("a folder");
        let () = server.ask(cmd("CONFIG").arg("SET").arg("stop-writes-on-bgsave-error").arg("no"));
        let () = server.ask(cmd("CONFIG").arg("SET").arg("save").arg("3600 1000000"));
        let () = server.ask(&cmd("BGSAVE"));
        wait_until("the dump fails", || {
            server.ask::<String>(cmd("INFO").arg("persistence")).contains("rdb_last_bgsave_status:err")
        });
        server
    }

    /// Starts a replica of another server, and waits until it is in sync.
    pub fn replica_of(master: &Self) -> Self {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        wait_until("the replica is in sync", || {
            replica.ask::<String>(cmd("INFO").arg("replication")).contains("master_link_status:up")
        });
        replica
    }

    /// Reserves a port without a server. [`start_again`](Self::start_again) starts it.
    pub fn not_started() -> Self {
        let port = free_port();
        Self { process: None, port, args: vec!["--port".to_owned(), port.to_string()], folder: Folder::new() }
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the server on its port.
    pub fn start_again(&mut self) {
        assert!(self.try_start(), "redis-server starts on the port it had");
    }

    /// Kills the server, and starts another one on its port.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Stops the process, as if its machine had vanished: its connections stay open, and nothing replies.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Continues the stopped process.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the reply to a command on a new connection.
    pub fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_ask(command).expect("a reply")
    }

    pub fn try_ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query(&mut Client::open(self.url())?.get_connection()?)
    }

    /// Returns how often a command was called, such as `evalsha` for scripts.
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.ask(cmd("INFO").arg("commandstats"));
        let calls = stats.split(&format!("cmdstat_{command}:calls=")).nth(1).and_then(|calls| calls.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a count"))
    }

    /// Returns the keys that match a pattern.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        self.ask(cmd("KEYS").arg(pattern))
    }

    /// Opens a connection with a long timeout.
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

/// Arguments of all servers except Sentinels, which have a file: do not write to disk unnecessarily, and do not wait
/// for more replicas.
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
    /// Panics if a successful test leaves a key that never expires.
    fn drop(&mut self) {
        let mut persistent = Vec::new();
        if self.process.is_some() && !thread::panicking() {
            // A stopped server would not reply.
            self.resume();
            persistent = keys_without_ttl(self.port);
        }
        self.stop();
        assert!(persistent.is_empty(), "keys without a TTL: {persistent:?}");
    }
}

/// Returns the millisecond at which a key expires. (Redis before 7.0 has no `PEXPIRETIME`.)
pub async fn expiry_of(key: &str, connection: &mut MultiplexedConnection) -> u64 {
    loop {
        let mut ask = pipe();
        ask.cmd("TIME").cmd("PTTL").arg(key).cmd("TIME");
        let (before, ttl, after): ((u64, u64), u64, (u64, u64)) = ask.query_async(connection).await.expect("a TTL");
        let [before, after] = [before, after].map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
        if before == after {
            return before + ttl;
        }
    }
}

/// Returns the keys of limits that never expire, on a server without authentication. Overrides need not expire.
pub fn keys_without_ttl(port: u16) -> Vec<String> {
    let ask = || {
        let mut connection =
            Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let keys: Vec<String> = cmd("KEYS").arg("*:{*}:*").query(&mut connection)?;
        let mut keys_without_ttl = Vec::new();
        for key in keys.into_iter().filter(|key| !key.ends_with(":override")) {
            // A key that has expired meanwhile has a TTL of -2.
            if cmd("PTTL").arg(&key).query::<i64>(&mut connection)? == -1 {
                keys_without_ttl.push(key);
            }
        }
        RedisResult::Ok(keys_without_ttl)
    };
    // Servers with a password or TLS are not checked.
    ask().unwrap_or_default()
}

/// Waits for something that must happen.
///
/// # Panics
///
/// Panics if it does not happen.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "timed out after {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
