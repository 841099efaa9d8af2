//! Permits on connections.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower_ratelimit::Permit;

use crate::service::per_day;
use support::server::Server;
use support::store_fixture::{StoreFixture, on_both_stores, user_key};

on_both_stores!(the_charge_of_a_request_without_a_response_stays);

/// Reports that its handler has been dropped.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Because the client disconnects, or the handler panics.
async fn the_charge_of_a_request_without_a_response_stays(fixture: StoreFixture) {
    let five = || per_day("failed-logins", 5).by(user_key());
    let failures = five().count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let (is_there, is_gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (there, gone) = (is_there.clone(), is_gone.clone());
    let hang = async move |_: Permit| {
        let _gone = Gone(gone);
        there.notify_one();
        std::future::pending::<()>().await;
    };
    let panics = async |_: Permit| -> StatusCode { panic!("it panics") };
    let app = Router::new().route("/hang", get(hang)).route("/panic", get(panics));
    let server = Server::axum(app.layer(fixture.builder([failures]).permits().build())).await;
    let address = server.uri("").replace("http://", "");
    for (path, left) in [("/hang", 4), ("/panic", 3), ("/hang", 2), ("/panic", 1)] {
        let mut client = TcpStream::connect(&address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nx-user: ann\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("it is sent");
        if path == "/hang" {
            is_there.notified().await;
            drop(client);
            is_gone.notified().await;
        } else {
            let mut answer = Vec::new();
            // The connection is closed in different ways.
            let _ = client.read_to_end(&mut answer).await;
            assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(fixture.remaining(&five(), "ann").await, left, "{path}");
    }
}
