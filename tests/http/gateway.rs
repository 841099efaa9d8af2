//! The example of a gateway to a language model does what the guide says.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use support::answer::{Answer, ask};
use support::store_fixture::StoreFixture;
use tokio::time::sleep;
use tower::ServiceExt;

#[allow(dead_code, reason = "a program's `main` is run as a program")]
#[path = "../../examples/gateway/main.rs"]
mod example;

/// The state of a limit for an API key, as the page shows it.
#[derive(Debug, Deserialize)]
struct Usage {
    left: u64,
    of: u64,
    debt: u64,
}

/// Returns what is left of the requests, streams and tokens of an API key, and its debt.
async fn usage(app: &Router, key: &str) -> [u64; 4] {
    let answer = ask(app, Request::get("/usage").body(Body::empty()).unwrap()).await;
    let usage: BTreeMap<String, BTreeMap<String, Usage>> = serde_json::from_str(&answer.body).expect("JSON");
    let limits = &usage[key];
    assert_eq!(["requests", "streams", "tokens"].map(|name| limits[name].of), [10, 2, 400]);
    [limits["requests"].left, limits["streams"].left, limits["tokens"].left, limits["tokens"].debt]
}

fn completion(key: &str, body: &str) -> Request<Body> {
    let request = Request::post("/completions").header("authorization", format!("Bearer {key}"));
    request.body(Body::from(body.to_owned())).unwrap()
}

/// Begins a stream.
async fn stream(app: &Router, max_tokens: Option<u64>) -> Body {
    let max_tokens = max_tokens.map_or(String::new(), |max_tokens| format!(r#","max_tokens":{max_tokens}"#));
    let request = completion("ann", &format!(r#"{{"prompt":"Once upon a time"{max_tokens}}}"#));
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body()
}

/// Reads words, at most `most`, and returns their number.
async fn read(body: &mut Body, most: usize) -> usize {
    let mut words = 0;
    while words < most
        && let Some(frame) = body.frame().await
    {
        let event = frame.unwrap().into_data().unwrap();
        let expected = ["Once", "upon", "a", "time"][words % 4];
        assert_eq!(event, format!("data: {expected}\n\n"));
        words += 1;
    }
    words
}

fn app() -> (Router, StoreFixture) {
    let fixture = StoreFixture::in_memory();
    (example::app(fixture.store.clone()), fixture)
}

#[tokio::test(start_paused = true)]
async fn a_stream_takes_a_slot_and_pays_what_it_sends() {
    let (app, _fixture) = app();
    assert_eq!(usage(&app, "ann").await, [10, 2, 400, 0]);
    let mut body = stream(&app, Some(120)).await;
    assert_eq!(usage(&app, "ann").await, [9, 1, 280, 0], "the estimate");
    assert_eq!(read(&mut body, usize::MAX).await, 120);
    assert_eq!(usage(&app, "ann").await, [9, 2, 280, 0]);

    // Without an estimate of the client, 50 tokens are reserved.
    let mut body = stream(&app, None).await;
    assert_eq!(usage(&app, "ann").await, [8, 1, 230, 0]);
    assert_eq!(read(&mut body, usize::MAX).await, 200);
    assert_eq!(usage(&app, "ann").await, [8, 2, 80, 0]);
    assert_eq!(usage(&app, "bob").await, [10, 2, 400, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_pays_what_was_sent() {
    let (app, _fixture) = app();
    let mut body = stream(&app, None).await;
    assert_eq!(read(&mut body, 7).await, 7);
    drop(body);
    assert_eq!(usage(&app, "ann").await, [9, 2, 393, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_third_stream_is_denied_and_charged_nothing() {
    let (app, _fixture) = app();
    let _streams = [stream(&app, None).await, stream(&app, None).await];
    let answer = ask(&app, completion("ann", r#"{"prompt":"Once"}"#)).await;
    assert_eq!((answer.status, answer.headers["retry-after"].as_bytes()), (StatusCode::TOO_MANY_REQUESTS, &b"1"[..]));
    assert_eq!(usage(&app, "ann").await, [8, 0, 300, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_debt_delays_the_next_request() {
    let (app, fixture) = app();
    read(&mut stream(&app, Some(150)).await, usize::MAX).await;
    let mut streams = [stream(&app, None).await, stream(&app, None).await];
    for stream in &mut streams {
        assert_eq!(read(stream, usize::MAX).await, 200);
    }
    assert_eq!(usage(&app, "ann").await, [7, 2, 0, 150]);

    // The debt, and the estimate of the next one, at 400 tokens a minute.
    let answer = ask(&app, completion("ann", r#"{"prompt":"Once"}"#)).await;
    assert_eq!((answer.status, answer.headers["retry-after"].as_bytes()), (StatusCode::TOO_MANY_REQUESTS, &b"30"[..]));
    fixture.advance(Duration::from_secs(30));
    let [_, slots, left, debt] = usage(&app, "ann").await;
    assert_eq!([slots, left, debt], [2, 50, 0]);
    drop(stream(&app, None).await);
}

#[tokio::test]
async fn strangers_and_broken_prompts_are_charged_nothing() {
    let (app, _fixture) = app();
    for (request, status) in [
        (completion("eve", r#"{"prompt":"Once"}"#), 401),
        (completion("ann", "Once"), 400),
        (completion("ann", &" ".repeat(200_000)), 413),
    ] {
        assert_eq!(ask(&app, request).await.status, status);
    }
    assert_eq!(usage(&app, "ann").await, [10, 2, 400, 0]);
}

/// In Redis, the settlement runs in the background.
#[tokio::test]
async fn gateways_on_redis_share_their_limits() {
    let fixture = StoreFixture::on_redis().await;
    let [one, other] = [(); 2].map(|()| example::app(fixture.store.clone()));
    let mut body = stream(&one, None).await;
    assert_eq!(usage(&other, "ann").await, [9, 1, 350, 0]);
    assert_eq!(read(&mut body, 3).await, 3);
    drop(body);
    for _ in 0..500 {
        if usage(&other, "ann").await == [9, 2, 397, 0] {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", usage(&other, "ann").await);
}

#[tokio::test]
async fn the_page_is_served() {
    let (app, _fixture) = app();
    let Answer { status, headers, body } = ask(&app, Request::get("/").body(Body::empty()).unwrap()).await;
    assert_eq!((status, headers["content-type"].to_str().unwrap()), (StatusCode::OK, "text/html; charset=utf-8"));
    assert!(body.contains("fetch(\"usage\")"), "{body}");
}
