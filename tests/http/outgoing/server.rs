//! The policy and the layer against a real server, in real time. Nothing depends on how long it takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use support::server::Server;
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};
use tower_ratelimit::client::{PaceLayer, RetryPolicy};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};

use super::retry::FORMS;

fn request(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_300_retries_is_earlier_than_a_server_allows() {
    let (denied, early) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(Mutex::new(Vec::new())));
    let reported = early.clone();
    let answer = async move |Path(number): Path<usize>| {
        let mut denied = denied.lock().unwrap();
        if let Some(allowed_at) = denied.get(&number) {
            if Instant::now() < *allowed_at {
                reported.lock().unwrap().push(number);
            }
            return "hello".into_response();
        }
        let (seconds, status, headers) = FORMS[number % FORMS.len()];
        denied.insert(number, Instant::now() + Duration::from_secs(seconds));
        let mut response = StatusCode::from_u16(status).unwrap().into_response();
        for (name, value) in headers {
            response.headers_mut().insert(*name, value.parse().unwrap());
        }
        response
    };
    let server = Server::axum(Router::new().route("/{number}", get(answer))).await;
    let client = ServiceBuilder::new()
        .retry(RetryPolicy::new().budget(1_000_000, 5))
        .service(Client::builder(TokioExecutor::new()).build_http());
    let calls = (0..300).map(|number| client.clone().oneshot(request(&server.uri(&format!("/{number}")))));
    let answers = calls.collect::<JoinSet<_>>().join_all().await;
    assert!(answers.into_iter().all(|answer| answer.unwrap().headers()["content-type"] == "text/plain; charset=utf-8"));
    assert!(early.lock().unwrap().is_empty(), "{early:?}");
}

/// The window of the server is a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_calls_to_a_server_with_a_limit_succeed() {
    let limits = RateLimitLayer::new([Limit::new("ten", FixedWindow::per_second(10))]);
    let server = Server::axum(Router::new().route("/", get(async || "hello")).layer(limits)).await;
    let client = ServiceBuilder::new()
        .retry(RetryPolicy::new())
        .layer(PaceLayer::new())
        .service(Client::builder(TokioExecutor::new()).build_http());
    let calls = (0..40).map(|_| client.clone().oneshot(request(&server.uri("/"))));
    let answers = calls.collect::<JoinSet<_>>().join_all().await;
    assert!(answers.into_iter().all(|answer| answer.unwrap().status() == 200));
}
