//! Connections of peers that are slow, silent, or too many.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::Method;
use support::http_client::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::program::{Program, send, wait_until};

/// Opens a connection, and sends the beginning of a request.
async fn open(address: SocketAddr, beginning: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(beginning.as_bytes()).await.expect("it is sent");
    stream
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let program = Program::start(&[]);
    let mut used = Connection::open(program.address).await;
    assert_eq!(used.get("/healthz", &[]).await, 200);
    let mut streams = Vec::new();
    for (address, path) in [(program.admin, "/explain"), (program.address, "/grpc.health.v1.Health/Check")] {
        let headers = "Host: a\r\nContent-Type: application/json\r\nContent-Length: 9";
        let head = format!("POST {path} HTTP/1.1\r\n{headers}\r\n\r\n");
        streams.push(("a head", open(address, &head).await));
        for beginning in ["", "P", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            streams.push((beginning, open(address, beginning).await));
        }
    }
    for (beginning, mut stream) in streams {
        let rest = timeout(Duration::from_secs(60), stream.read_to_end(&mut Vec::new())).await;
        assert!(rest.is_ok(), "it is open after {beginning:?}");
    }
    assert_eq!(used.get("/healthz", &[]).await, 200, "it stays open between requests");
}

#[tokio::test]
async fn connections_of_a_listener_are_bounded() {
    let program = Program::start(&[]);
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(open(program.admin, "GET ").await);
    }
    let metrics = send(program.admin, Method::GET, "/metrics", &[], "");
    let began = Instant::now();
    tokio::pin!(metrics);
    assert!(timeout(Duration::from_secs(1), &mut metrics).await.is_err(), "it waits for a connection to close");
    assert_eq!(program.get("/healthz", &[]).await.status, 200, "the other listener is not affected");
    assert_eq!(timeout(Duration::from_secs(60), metrics).await.expect("an answer").status, 200);
    drop(streams);
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn too_many_open_files_do_not_end_the_program() {
    let program = Program::with_open_files(40);
    let mut streams = Vec::new();
    for _ in 0..60 {
        streams.push(open(program.address, "GET ").await);
    }
    let errors = || program.log().lines().filter(|line| line.contains("can't accept")).count();
    wait_until("an error is logged", async || errors() > 0).await;
    drop(streams);
    assert_eq!(program.get("/healthz", &[]).await.status, 200);
    assert!(errors() < 30, "{}", program.log());
}
