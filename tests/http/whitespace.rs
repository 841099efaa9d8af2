//! Whitespace around the values of headers, which HTTP/2 transmits, for everything that reads headers.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use support::answer::{Answer, ask};
use support::server::Server;
use tower::{Layer, service_fn};
use tower_ratelimit::key::KeyExtractor;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when;
use tower_ratelimit::{
    Builder, FixedWindow, HttpOptions, KeyList, Limit, OnMissingKey, RateLimitLayer, RequestHead, key,
};

use crate::service::{Hello, from};
use crate::store::paused_store;

const KEY: &str = "x-api-key";

fn one() -> Limit {
    Limit::new("one", FixedWindow::per_day(1))
}

fn limits(limit: Limit) -> Builder<HttpOptions> {
    RateLimitLayer::builder([limit]).store(paused_store())
}

/// Returns a request with a line of the key's header for each value.
fn lines(values: &[&'static str]) -> Request<()> {
    let mut request = from("192.0.2.1");
    for value in values {
        request.headers_mut().append(KEY, HeaderValue::from_static(value));
    }
    request
}

async fn statuses(layer: RateLimitLayer, requests: &[&[&'static str]]) -> Vec<u16> {
    let service = layer.layer(Hello::default());
    let mut statuses = Vec::new();
    for values in requests {
        statuses.push(ask(&service, lines(values)).await.status.as_u16());
    }
    statuses
}

#[tokio::test]
async fn whitespace_evades_neither_a_list_nor_a_bucket_over_http_2() {
    let leaked = KeyList::new(key::header(KEY), ["leaked"]);
    let layer = limits(one().by(key::header(KEY))).always_reject(leaked).build();
    let inner = service_fn(async |_| Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("hello"))));
    let server = Server::hyper(layer.layer(inner)).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    for (value, status) in [
        ("leaked", 403),
        ("leaked ", 403),
        (" \tleaked\t ", 403),
        ("ann", 200),
        ("ann ", 429),
        ("\tann", 429),
        ("an n", 200),
        ("", 400),
        (" \t", 400),
    ] {
        let request = Request::get(server.uri("/")).header(KEY, HeaderValue::from_static(value));
        let request = request.body(Full::default()).unwrap();
        let answer = Answer::of(client.request(request).await.expect("the server responds")).await;
        assert_eq!(answer.status, status, "{value:?}");
    }
}

#[tokio::test]
async fn a_blank_header_is_missing() {
    let requests: [&[&str]; 4] = [&[" "], &[], &["ann"], &["\t"]];
    let by = || one().by(key::header(KEY));
    assert_eq!(statuses(limits(by()).build(), &requests).await, [400, 400, 200, 400]);
    let skipped = by().on_missing_key(OnMissingKey::Skip);
    assert_eq!(statuses(limits(skipped).build(), &requests).await, [200, 200, 200, 200]);
    let by_address = one().by(key::header(KEY).or(key::peer_ip()));
    assert_eq!(statuses(limits(by_address).build(), &requests).await, [200, 429, 200, 429]);
    // A blank line counts as a line.
    assert_eq!(statuses(limits(by()).build(), &[&["ann", " "]]).await, [400]);
}

#[tokio::test]
async fn lists_compare_lines_without_whitespace() {
    let many = || Limit::new("many", FixedWindow::per_day(100));
    let leaked = KeyList::new(key::header(KEY), ["leaked"]);
    let requests: [&[&str]; 4] = [&["leaked "], &["zzz", "leaked "], &["\tleaked", "zzz"], &["leaked s"]];
    assert_eq!(statuses(limits(many()).always_reject(leaked).build(), &requests).await, [403, 403, 403, 200]);
    let ours = KeyList::new(key::header(KEY), ["ours"]);
    let requests: [&[&str]; 4] = [&["ours "], &["\tours"], &["zzz"], &["zzz "]];
    assert_eq!(statuses(limits(one()).never_limit(ours).build(), &requests).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn conditions_compare_lines_without_whitespace() {
    let requests: [&[&str]; 4] = [&["free "], &["\tfree"], &["pro "], &["pro", " free"]];
    let free = one().when(when::header(KEY, "free"));
    assert_eq!(statuses(limits(free).build(), &requests).await, [200, 429, 200, 429]);
    let not_pro = one().when(when::not(when::header(KEY, " pro ")));
    assert_eq!(statuses(limits(not_pro).build(), &requests).await, [200, 429, 200, 429]);
    let ours = when::header(KEY, "pro");
    let requests: [&[&str]; 3] = [&["pro ", "pro"], &["free"], &["pro ", "free"]];
    assert_eq!(statuses(limits(one()).never_limit(ours).build(), &requests).await, [200, 200, 429]);
}

#[tokio::test]
async fn closures_read_values_without_whitespace() {
    for (value, expected) in
        [("ann", Some("ann")), (" ann\t", Some("ann")), ("an n ", Some("an n")), (" \t", None), ("", None)]
    {
        assert_eq!(RequestHead::of(&lines(&[value])).header(KEY), expected, "{value:?}");
    }
    let guests = one().when(when::from_fn(|head| head.header(KEY).is_none()));
    let requests: [&[&str]; 4] = [&[], &[" "], &[""], &["ann"]];
    assert_eq!(statuses(limits(guests).build(), &requests).await, [200, 429, 429, 200]);
}

#[tokio::test]
async fn rules_compare_values_without_whitespace() {
    let yaml = "
domain: shop
descriptors:
- { key: header.x-api-key, rate_limit: { name: each, unit: year, requests_per_unit: 1 } }
- { key: header.x-api-key, value: leaked, rate_limit: { name: leaked, unit: second, requests_per_unit: 0 } }
- { key: header.x-api-key, value: 'b*b', rate_limit: { name: pattern, unit: second, requests_per_unit: 0 } }
- { key: header.x-api-key, value: free }
";
    let rules = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    let requests: [&[&str]; 9] = [
        &["leaked"],
        &["leaked "],
        &["bob\t"],
        &["ann"],
        &[" ann"],
        &[" "],
        &["free "],
        &["free", "free "],
        &["free", "leaked "],
    ];
    let layer = RateLimitLayer::builder(rules).store(paused_store()).build();
    assert_eq!(statuses(layer, &requests).await, [429, 429, 429, 200, 429, 200, 200, 400, 400]);
}
