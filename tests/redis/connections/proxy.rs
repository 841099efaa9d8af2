//! A proxy in front of a server, whose connections can die silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
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
