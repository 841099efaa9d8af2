//! Permits on connections.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower_ratelimit::{FixedWindow, Limit, Permit};

use support::answer::Answer;
use support::server::Server;
use support::store_fixture::{StoreFixture, on_both_stores, user_key};

on_both_stores!(
    failed_logins_are_counted_and_forgotten,
    the_charge_of_a_client_that_disconnects_stays,
    the_charge_of_a_handler_that_panics_stays,
);

/// Returns a limit for which only failures count.
fn five() -> Limit {
    let five = Limit::new("failed-logins", FixedWindow::per_day(5)).by(user_key());
    five.count_if(|response| response.status == StatusCode::UNAUTHORIZED)
}

async fn ask(server: &Server, path: &str) -> Answer {
    let request = Request::get(server.uri(path)).header("x-user", "ann");
    server.send(request.body(Full::<Bytes>::default()).expect("it is a request")).await
}

async fn failed_logins_are_counted_and_forgotten(fixture: StoreFixture) {
    let login = async |permit: Permit, Path(password): Path<String>| match password.as_str() {
        "right" => permit.reset().await.map(|()| StatusCode::OK).expect("a reset"),
        "later" => StatusCode::FOUND,
        _ => StatusCode::UNAUTHORIZED,
    };
    let limits = fixture.builder([five()]).permits().build();
    let server = Server::axum(Router::new().route("/{password}", get(login)).layer(limits)).await;
    for _ in 0..3 {
        for left in (1..5).rev() {
            assert_eq!(ask(&server, "/wrong").await.remaining(), left);
            assert_eq!(ask(&server, "/later").await.status, StatusCode::FOUND);
            fixture.wait_for_remaining(&five(), "ann", left).await;
        }
        let answer = ask(&server, "/right").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 5));
    }
    for _ in 0..5 {
        assert_eq!(ask(&server, "/wrong").await.status, StatusCode::UNAUTHORIZED);
    }
    assert!(ask(&server, "/right").await.is_refused());
}

async fn the_charge_of_a_client_that_disconnects_stays(fixture: StoreFixture) {
    /// Reports that its handler has been dropped.
    struct Gone(Arc<Notify>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (is_there, is_gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (there, gone) = (is_there.clone(), is_gone.clone());
    let hang = async move |_: Permit| {
        let _gone = Gone(gone);
        there.notify_one();
        std::future::pending::<()>().await;
    };
    let server =
        Server::axum(Router::new().route("/", get(hang)).layer(fixture.builder([five()]).permits().build())).await;
    let address = server.uri("").replace("http://", "");
    for left in [4, 3] {
        let mut client = TcpStream::connect(&address).await.expect("a connection");
        client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nx-user: ann\r\n\r\n").await.expect("it is sent");
        is_there.notified().await;
        drop(client);
        is_gone.notified().await;
        assert_eq!(fixture.remaining(&five(), "ann").await, left);
    }
}

async fn the_charge_of_a_handler_that_panics_stays(fixture: StoreFixture) {
    let panics = async |_: Permit| -> StatusCode { panic!("it panics") };
    let server =
        Server::axum(Router::new().route("/", get(panics)).layer(fixture.builder([five()]).permits().build())).await;
    let address = server.uri("").replace("http://", "");
    for left in [4, 3] {
        let mut client = TcpStream::connect(&address).await.expect("a connection");
        client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nx-user: ann\r\n\r\n").await.expect("it is sent");
        let mut answer = Vec::new();
        // The client closes the connection in different ways.
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(fixture.remaining(&five(), "ann").await, left);
    }
}
