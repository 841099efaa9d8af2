//! Captures one of this crate's calls, as the server sees it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Value, cmd};
use tower_ratelimit::Limiter;

use super::server::RedisServer;

/// The script's hash, and the arguments that follow.
#[derive(Clone)]
pub struct Call(Arc<[Vec<u8>]>);

impl Call {
    /// Captures what a limiter sends to decide for a key.
    pub async fn of(limiter: &Limiter, server: &RedisServer) -> Self {
        let act = async { drop(limiter.acquire("a key", 1).await.expect("a decision")) };
        Self(spy(server, "\"EVALSHA\" ", act).await.into())
    }

    /// Returns the same for the `n`th key.
    fn command(&self, n: u64) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.0[..2]);
        // The keys follow the hash and their number; two arguments follow the keys.
        for key in &self.0[2..self.0.len() - 2] {
            let key = std::str::from_utf8(key).expect("a key's name");
            let (start, rest) = key.split_once('{').expect("a hash tag");
            let end = rest.split_once('}').expect("a hash tag").1;
            command.arg(format!("{start}{{{n:0>32}}}{end}"));
        }
        command.arg(&self.0[self.0.len() - 2..]);
        command
    }

    pub async fn send(&self, connection: &mut impl ConnectionLike, n: u64) {
        let _: Value = self.command(n).query_async(connection).await.expect("a reply");
    }
}

/// Returns what follows `verb` in a command that `act` sends.
async fn spy(server: &RedisServer, verb: &str, act: impl Future<Output = ()>) -> Vec<Vec<u8>> {
    let address = server.url().replace("redis://", "");
    let mut monitor = TcpStream::connect(address).expect("a connection");
    monitor.write_all(b"MONITOR\r\n").expect("a request");
    let mut lines = BufReader::new(monitor).lines();
    lines.next();
    act.await;
    let line = lines.map_while(Result::ok).find(|line| line.contains(verb)).expect("a call");
    arguments(line.split_once(verb).expect("a call").1)
}

/// Reads arguments as `MONITOR` quotes them.
fn arguments(text: &str) -> Vec<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut arguments = Vec::new();
    while let Some(quote) = bytes.next() {
        if quote != b'"' {
            continue;
        }
        let mut argument = Vec::new();
        loop {
            match bytes.next().expect("a closing quote") {
                b'"' => break,
                b'\\' => match bytes.next().expect("an escape") {
                    b'x' => {
                        let hex = [bytes.next().expect("hex"), bytes.next().expect("hex")];
                        let hex = std::str::from_utf8(&hex).expect("hex");
                        argument.push(u8::from_str_radix(hex, 16).expect("hex"));
                    }
                    b'n' => argument.push(b'\n'),
                    b'r' => argument.push(b'\r'),
                    b't' => argument.push(b'\t'),
                    b'a' => argument.push(7),
                    b'b' => argument.push(8),
                    other => argument.push(other),
                },
                byte => argument.push(byte),
            }
        }
        arguments.push(argument);
    }
    arguments
}
