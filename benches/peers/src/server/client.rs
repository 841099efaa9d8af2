//! A minimal client, which writes the same bytes repeatedly and reads to the end of each response.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";

pub struct Client {
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects from as many addresses of the loopback interface.
    pub async fn connect(to: SocketAddr, connections: u8) -> Self {
        let connect = |client| async move {
            let socket = TcpSocket::new_v4().expect("a socket");
            // Systems with a single loopback address connect from that one.
            let _ = socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 1, client), 0)));
            let stream = socket.connect(to).await.expect("a connection");
            stream.set_nodelay(true).expect("no delay");
            Connection { stream, buffer: Vec::new() }
        };
        Self { connections: join_all((1..=connections).map(connect)).await }
    }

    /// Returns the status of each connection's second request.
    pub async fn statuses(&mut self) -> Vec<StatusCode> {
        let second = self.connections.iter_mut().map(|connection| async {
            connection.ask().await;
            connection.ask().await
        });
        join_all(second).await
    }

    /// Sends requests on all connections for a span, and returns how many.
    pub async fn load(&mut self, span: Duration) -> f64 {
        let started = Instant::now();
        let asked = self.connections.iter_mut().map(|connection| async {
            let mut asked = 0;
            while started.elapsed() < span {
                connection.ask().await;
                asked += 1;
            }
            asked
        });
        let asked: u32 = join_all(asked).await.into_iter().sum();
        f64::from(asked)
    }
}

impl Connection {
    async fn ask(&mut self) -> StatusCode {
        self.stream.write_all(REQUEST).await.expect("it is sent");
        self.buffer.clear();
        loop {
            self.stream.read_buf(&mut self.buffer).await.expect("it is answered");
            if let Some(status) = answer(&self.buffer) {
                return status;
            }
        }
    }
}

/// Returns the status, once the whole response has arrived.
fn answer(bytes: &[u8]) -> Option<StatusCode> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&bytes[..head]).expect("a head");
    let status = text.get(9..12)?.parse().expect("a status");
    let length = text.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
    (bytes.len() >= head + 4 + length).then_some(status)
}
