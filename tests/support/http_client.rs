//! A client for servers in other processes.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A connection that is kept open between requests.
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        Self::over(stream).await.expect("a connection")
    }

    async fn over(stream: TcpStream) -> hyper::Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Returns the status of the response.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.send(Method::GET, path, headers).await.expect("a response").0
    }

    /// Returns the body of the response.
    pub async fn body(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> String {
        self.send(method, path, headers).await.expect("a response").1
    }

    async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> hyper::Result<(u16, String)> {
        self.0.ready().await?;
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Empty::new()).expect("a valid request");
        let (head, body) = self.0.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((head.status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
    }
}

/// Returns the body of a response.
pub async fn get(address: SocketAddr, path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut connection = Connection::over(TcpStream::connect(address).await?).await?;
    Ok(connection.send(Method::GET, path, &[]).await?.1)
}
