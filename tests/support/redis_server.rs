//! A Redis of a test's own, on a free port, which ends with the test and leaves nothing behind.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    /// # Panics
    ///
    /// When there is no `redis-server`: a machine without it has not run the tests.
    pub(crate) fn start() -> Self {
        // Someone else may take the port before Redis does: it then ends at once.
        (0..5).find_map(|_| Self::on(free_port())).expect("redis-server starts on a free port")
    }

    fn on(port: u16) -> Option<Self> {
        let mut process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("can't start redis-server: {error}; install it, on Debian by `apt-get install redis-server`")
            });
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) && process.try_wait().expect("its status").is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Some(Self { process, port });
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = process.kill();
        let _ = process.wait();
        None
    }

    /// Kills it, and starts another one on its port.
    #[allow(dead_code, reason = "only some tests need it")]
    pub(crate) fn restart(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        *self = Self::on(self.port).expect("redis-server starts on the port it had");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
