//! Concurrency limits in responses.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, Response};
use support::answer::{Answer, ask};
use tonic_types::StatusExt;
use tower::ServiceExt;
use tower_ratelimit::{HeaderStyle, Limit, ResetFormat};

use crate::{builder, get, requests, respond, streams};

/// Returns the answers to a request beside others that hold so many slots.
async fn answer(limits: Vec<Limit>, style: HeaderStyle, held: usize) -> Answer {
    let limits = builder(limits).headers([style]).build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    let mut others = Vec::new();
    for _ in 0..held {
        others.push(service.clone().oneshot(get("ann")).await.unwrap());
    }
    ask(&service, get("ann")).await
}

fn fields(headers: &HeaderMap, names: [&str; 2]) -> [Option<String>; 2] {
    names.map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn both_drafts_report_slots_without_times() {
    for style in [HeaderStyle::IetfDraft10, HeaderStyle::IetfDraft11] {
        let names = ["ratelimit-policy", "ratelimit"];
        let policy = r#""streams";q=8;qu="concurrent-requests""#;
        let allowed = answer(vec![streams(8)], style, 4).await;
        let expected = [policy, r#""streams";r=3"#].map(|value| Some(value.to_owned()));
        assert_eq!(fields(&allowed.headers, names), expected, "{style:?}");
        let denied = answer(vec![streams(8)], style, 8).await;
        let expected = [policy, r#""streams";r=0"#].map(|value| Some(value.to_owned()));
        assert_eq!((denied.status.as_u16(), fields(&denied.headers, names)), (429, expected), "{style:?}");
        assert_eq!(denied.header("retry-after"), Some("1"));
        // Beside a rate, which has them.
        let both = answer(vec![streams(8), requests(10)], style, 4).await;
        let expected = format!(r#"{policy}, "requests";q=10;w=86400"#);
        assert_eq!(fields(&both.headers, names)[0], Some(expected));
        assert_eq!(both.standings()[0].parameters, [("r".to_owned(), 3)]);
        assert!(both.standings()[1].get("t").is_some());
    }
}

#[tokio::test]
async fn no_triple_describes_slots() {
    let triple = HeaderStyle::XRateLimit(ResetFormat::Seconds);
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining"];
    for held in [0, 1] {
        let only = answer(vec![streams(1)], triple, held).await;
        assert_eq!((only.status.as_u16() == 429, fields(&only.headers, names)), (held == 1, [None, None]));
        let both = answer(vec![streams(1), requests(10)], triple, held).await;
        assert_eq!(fields(&both.headers, names), ["10", "9"].map(|value| Some(value.to_owned())), "{held}");
        assert_eq!(both.header("retry-after"), (held == 1).then_some("1"));
    }
}

#[tokio::test]
async fn grpc_calls_are_told_to_retry_in_a_second() {
    let limits = builder([streams(1)]).build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    let _held = service.clone().oneshot(get("ann")).await.unwrap();
    let call = Request::post("/package.Service/Method").header("x-user", "ann").header("te", "trailers");
    let call = call.header("content-type", "application/grpc").body(Body::empty()).unwrap();
    let denied = ask(&service, call).await;
    let status = tonic::Status::from_header_map(&denied.headers).unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let delay = status.get_error_details().retry_info().unwrap().retry_delay;
    assert_eq!(delay, Some(Duration::from_secs(1)));
}
