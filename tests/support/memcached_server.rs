//! A Memcached server on a free port of 127.0.0.1. It stops when it is dropped.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::redis_server::{free_port, wait_until};

pub struct MemcachedServer {
    process: Child,
    port: u16,
}

impl MemcachedServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// Panics if `memcached` is not installed.
    pub fn start() -> Self {
        let port = free_port();
        let mut command = Command::new("memcached");
        command.args(["--listen", "127.0.0.1", "--port", &port.to_string(), "--user", "nobody"]);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = Self { process: process.expect("`memcached` is installed"), port };
        wait_until("memcached listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        server
    }

    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }
}

impl Drop for MemcachedServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
