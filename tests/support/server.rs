//! A server on a free port, which stops when it is dropped, and its client.

use std::error::Error;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tower::{Service, ServiceExt};
use tower_ratelimit::key::PeerAddr;

use crate::answer::Answer;

type BoxError = Box<dyn Error + Send + Sync>;

pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Server {
    /// Serves an Axum router.
    pub async fn axum(app: axum::Router) -> Self {
        Self::run(async |listener| {
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, app).await.expect("Axum serves");
        })
        .await
    }

    /// Serves a service with plain Hyper, which does not provide the peer's address.
    pub async fn hyper<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: Send>,
        S: Clone + Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        Self::run(async move |listener| {
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.expect("a client connects");
                let service = service.clone().map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(PeerAddr(peer));
                    request
                });
                connections.spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let service = TowerToHyperService::new(service);
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        })
        .await
    }

    /// Runs a function that serves a listener.
    pub async fn run<F>(serve: impl FnOnce(TcpListener) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, task: tokio::spawn(serve(listener)), client }
    }

    pub fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(self.uri(path)).body(Full::default()).expect("a valid request")).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        Answer::of(self.client.request(request).await.expect("the server responds")).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
