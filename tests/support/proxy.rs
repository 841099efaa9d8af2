//! A proxy in front of a server, whose connections can die silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    /// The time, in ms, by which each reply is late.
    latency: Arc<AtomicU64>,
    connections: Arc<Mutex<Vec<Forwarded>>>,
    pub opened: Arc<AtomicU32>,
}

/// A connection, whose ends stay open when it is dead.
struct Forwarded {
    forwarding: JoinHandle<()>,
    ends: Arc<Mutex<(TcpStream, TcpStream)>>,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Self {
            port: listener.local_addr().expect("an address").port(),
            target: Arc::new(port.into()),
            latency: Arc::default(),
            connections: Arc::default(),
            opened: Arc::default(),
        };
        let (target, connections) = (proxy.target.clone(), proxy.connections.clone());
        let (opened, latency) = (proxy.opened.clone(), proxy.latency.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                let target = ("127.0.0.1", target.load(Ordering::Relaxed));
                let server = TcpStream::connect(target).await.expect("a server");
                let ends = Arc::new(Mutex::new((client, server)));
                let (forwarded, latency) = (ends.clone(), latency.clone());
                let forwarding = tokio::spawn(async move {
                    let (client, server) = &mut *forwarded.lock().await;
                    let ((mut asked, mut reply), (mut answer, mut ask)) = (client.split(), server.split());
                    // A connection that one side closes is closed for the other.
                    let calls = async {
                        let _ = (copy(&mut asked, &mut ask).await, ask.shutdown().await);
                    };
                    let replies = async {
                        let mut buffer = vec![0; 1 << 16];
                        while let Ok(length @ 1..) = answer.read(&mut buffer).await {
                            tokio::time::sleep(Duration::from_millis(latency.load(Ordering::Relaxed))).await;
                            let _ = reply.write_all(&buffer[..length]).await;
                        }
                        let _ = reply.shutdown().await;
                    };
                    tokio::join!(calls, replies);
                });
                connections.lock().await.push(Forwarded { forwarding, ends });
            }
        });
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Forwards new connections to another server.
    pub fn set_target(&self, port: u16) {
        self.target.store(port, Ordering::Relaxed);
    }

    /// Delays each reply by so many ms.
    pub fn set_latency(&self, latency: u64) {
        self.latency.store(latency, Ordering::Relaxed);
    }

    /// Makes all existing connections die silently. New ones work.
    pub async fn kill(&self) {
        self.kill_some(usize::MAX).await;
    }

    /// Makes so many of the connections die silently.
    pub async fn kill_some(&self, most: usize) {
        for connection in self.connections.lock().await.iter_mut().filter(|it| !it.forwarding.is_finished()).take(most)
        {
            connection.forwarding.abort();
            let _ = (&mut connection.forwarding).await;
        }
    }

    /// Makes all existing connections die silently, until something is sent over them: then they are reset.
    pub async fn kill_with_resets(&self) {
        self.kill().await;
        for connection in self.connections.lock().await.drain(..) {
            tokio::spawn(async move {
                let (client, _) = &mut *connection.ends.lock().await;
                let _ = client.read(&mut [0; 1]).await;
                // Closing a connection whose data was not read resets it.
                let _ = client.set_zero_linger();
            });
        }
    }
}

/// A proxy that keeps calls of the script from the server until they are let through.
pub struct Gate {
    port: u16,
    is_open: watch::Sender<bool>,
    /// The number of calls so far.
    pub calls: Arc<AtomicU32>,
}

impl Gate {
    /// Creates an open gate.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let gate = Self { port: own, is_open: watch::Sender::new(true), calls: Arc::default() };
        let (is_open, calls) = (gate.is_open.subscribe(), gate.calls.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
                let ((mut asked, mut reply), (mut answer, mut ask)) = (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut answer, &mut reply).await });
                let (held, mut chunks) = unbounded_channel();
                let (mut is_open, calls) = (is_open.clone(), calls.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = asked.read(&mut buffer).await {
                        let chunk = buffer[..length].to_vec();
                        let found = chunk.windows(7).filter(|word| *word == b"EVALSHA").count();
                        calls.fetch_add(u32::try_from(found).expect("few"), Ordering::Relaxed);
                        let _ = held.send(chunk);
                    }
                });
                tokio::spawn(async move {
                    while let Some(chunk) = chunks.recv().await {
                        let _ = is_open.wait_for(|is_open| *is_open).await;
                        let _ = ask.write_all(&chunk).await;
                    }
                });
            }
        });
        gate
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set_open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}
