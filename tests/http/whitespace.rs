//! Whitespace around the values of headers, which HTTP/2 transmits, for everything that reads headers.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use support::answer::Answer;
use support::server::Server;
use tower_ratelimit::key::KeyExtractor;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when;
use tower_ratelimit::{KeyList, OnMissingKey, RequestHead, key};

use crate::service::{KEY, builder, check_keys, lines, one, per_minute, serve};

fn keys(key: &str) -> KeyList {
    KeyList::new(key::header(KEY), [key])
}

#[tokio::test]
async fn whitespace_evades_neither_a_list_nor_a_bucket_over_http_2() {
    let server = Server::hyper(serve(builder(one().by(key::header(KEY))).always_reject(keys("leaked")))).await;
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
    let by = || one().by(key::header(KEY));
    for (limit, expected) in [
        // A blank line counts as a line.
        (by(), [400, 400, 200, 400, 400]),
        (by().on_missing_key(OnMissingKey::Skip), [200, 200, 200, 200, 400]),
        (one().by(key::header(KEY).or(key::peer_ip())), [200, 429, 200, 429, 400]),
    ] {
        check_keys(builder(limit), [&[" "], &[], &["ann"], &["\t"], &["ann", " "]], expected).await;
    }
}

#[tokio::test]
async fn lists_compare_lines_without_whitespace() {
    let requests: [&[&str]; 4] = [&["leaked "], &["zzz", "leaked "], &["\tleaked", "zzz"], &["leaked s"]];
    let rejected = builder(per_minute("many", 100)).always_reject(keys("leaked"));
    check_keys(rejected, requests, [403, 403, 403, 200]).await;
    let exempt = builder(one()).never_limit(keys("ours"));
    check_keys(exempt, [&["ours "], &["\tours"], &["zzz"], &["zzz "]], [200, 200, 200, 429]).await;
}

#[tokio::test]
async fn conditions_compare_lines_without_whitespace() {
    for limit in [one().when(when::header(KEY, "free")), one().when(when::not(when::header(KEY, " pro ")))] {
        let requests: [&[&str]; 4] = [&["free "], &["\tfree"], &["pro "], &["pro", " free"]];
        check_keys(builder(limit), requests, [200, 429, 200, 429]).await;
    }
    let exempt = builder(one()).never_limit(when::header(KEY, "pro"));
    check_keys(exempt, [&["pro ", "pro"], &["free"], &["pro ", "free"]], [200, 200, 429]).await;
}

#[tokio::test]
async fn closures_read_values_without_whitespace() {
    for (value, expected) in
        [("ann", Some("ann")), (" ann\t", Some("ann")), ("an n ", Some("an n")), (" \t", None), ("", None)]
    {
        assert_eq!(RequestHead::of(&lines(KEY, &[value])).header(KEY), expected, "{value:?}");
    }
    let guests = one().when(when::from_fn(|head| head.header(KEY).is_none()));
    check_keys(builder(guests), [&[], &[" "], &[""], &["ann"]], [200, 429, 429, 200]).await;
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
    let rules = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    check_keys(builder(rules), requests, [429, 429, 429, 200, 429, 200, 200, 400, 400]).await;
}
