//! A proxy in front of a server, whose connections can die silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub(crate) struct Proxy {
    port: u16,
    /// Stops the forwarding on existing connections.
    living: Arc<Mutex<Vec<JoinHandle<()>>>>,
    pub(crate) opened: Arc<AtomicU32>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Self {
            port: listener.local_addr().expect("an address").port(),
            living: Arc::default(),
            opened: Arc::default(),
        };
        let (living, opened) = (proxy.living.clone(), proxy.opened.clone());
        tokio::spawn(async move {
            // Both ends of a dead connection stay open.
            let mut ends = Vec::new();
            while let Ok((client, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                let server = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
                let end = Arc::new(Mutex::new((client, server)));
                ends.push(end.clone());
                living.lock().await.push(tokio::spawn(async move {
                    let (client, server) = &mut *end.lock().await;
                    let _ = copy_bidirectional(client, server).await;
                    // A connection that one side closes is closed for the other.
                    let _ = (client.shutdown().await, server.shutdown().await);
                }));
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Makes all existing connections die silently. New ones work.
    pub(crate) async fn kill(&self) {
        for living in self.living.lock().await.drain(..) {
            living.abort();
            let _ = living.await;
        }
    }
}

/// A proxy that keeps calls of the script from the server until they are let through.
pub(crate) struct Gate {
    port: u16,
    is_open: watch::Sender<bool>,
    /// The number of calls so far.
    pub(crate) calls: Arc<AtomicU32>,
}

impl Gate {
    /// Creates an open gate.
    pub(crate) async fn to(port: u16) -> Self {
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

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}
