//! Keys with several parts, synchronous and asynchronous, and alternatives.

use std::pin::Pin;
use std::sync::Arc;

use http::{Request, StatusCode};
use tower::Layer;
use tower_ratelimit::key::KeyExtractor;
use tower_ratelimit::{FixedWindow, Limit, OnMissingKey, RateLimitLayer, RequestHead, key};

use crate::service::{Hello, from, with};
use crate::store::paused_store;
use support::answer::ask;

/// Extracts the value of a header synchronously.
fn now(name: &'static str) -> impl KeyExtractor {
    key::header(name)
}

/// Extracts the value of a header asynchronously.
fn later(name: &'static str) -> impl KeyExtractor {
    looked_up(move |head| head.header(name).map(str::to_owned))
}

fn looked_up<F>(find: F) -> impl KeyExtractor
where
    F: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
{
    key::from_async_fn(move |head| {
        let found = find(head);
        Box::pin(async move {
            tokio::task::yield_now().await;
            found
        }) as Found
    })
}

type Found = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Returns the statuses of `requests` with one token for each key.
async fn statuses(by: impl KeyExtractor, requests: impl IntoIterator<Item = Request<()>>) -> Vec<u16> {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(by);
    let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default());
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(ask(&service, request).await.status.as_u16());
    }
    statuses
}

fn parts(one: &str, two: &str, three: &str) -> Request<()> {
    let all = [("x-one", one), ("x-two", two), ("x-three", three)];
    with(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

/// Each part distinguishes keys, parts are not concatenated, and a missing part is a missing key.
async fn every_part_counts(by: impl KeyExtractor) {
    let requests = [
        parts("a", "b", "c"),
        parts("a", "b", "c"),
        parts("x", "b", "c"),
        parts("a", "x", "c"),
        parts("a", "b", "x"),
        parts("c", "b", "a"),
        parts("ab", "b", "c"),
        parts("a", "b", "bc"),
        parts("", "b", "c"),
        parts("a", "", "c"),
        parts("a", "b", ""),
        parts("c", "b", "a"),
    ];
    let expected = [200, 429, 200, 200, 200, 200, 200, 200, 400, 400, 400, 429];
    assert_eq!(statuses(by, requests).await, expected);
}

#[tokio::test]
async fn tuples_of_synchronous_and_asynchronous_keys_work_in_every_order() {
    every_part_counts((now("x-one"), now("x-two"), now("x-three"))).await;
    every_part_counts((later("x-one"), now("x-two"), now("x-three"))).await;
    every_part_counts((now("x-one"), later("x-two"), now("x-three"))).await;
    every_part_counts((now("x-one"), now("x-two"), later("x-three"))).await;
    every_part_counts((later("x-one"), later("x-two"), now("x-three"))).await;
    every_part_counts((later("x-one"), now("x-two"), later("x-three"))).await;
    every_part_counts((now("x-one"), later("x-two"), later("x-three"))).await;
    every_part_counts((later("x-one"), later("x-two"), later("x-three"))).await;
}

#[tokio::test]
async fn tuples_can_be_nested() {
    every_part_counts(((now("x-one"), later("x-two")), now("x-three"))).await;
    every_part_counts((later("x-one"), (now("x-two"), later("x-three")))).await;
    every_part_counts(((later("x-one"),), key::method(), (now("x-two"), now("x-three")))).await;
    every_part_counts((key::path(), later("x-one"), now("x-two"), later("x-three"))).await;
}

/// Synchronous and asynchronous extractors of equal parts have equal keys.
#[tokio::test]
async fn synchronous_and_asynchronous_keys_share_buckets() {
    let store = Arc::new(paused_store());
    let limited = |limit: Limit| RateLimitLayer::builder([limit]).store(store.clone()).build().layer(Hello::default());
    let limit = || Limit::new("one", FixedWindow::per_minute(1));
    let one = limited(limit().by((now("x-one"), later("x-two"), now("x-three"))));
    let other = limited(limit().by((later("x-one"), now("x-two"), later("x-three"))));
    assert!(!ask(&one, parts("a", "b", "c")).await.is_refused());
    assert!(ask(&other, parts("a", "b", "c")).await.is_refused());
    assert!(!ask(&other, parts("a", "c", "b")).await.is_refused());
    assert!(ask(&one, parts("a", "c", "b")).await.is_refused());
}

/// The first key if it exists, or else the second. Both never share a bucket, even if their values are equal.
async fn one_or_the_other(by: impl KeyExtractor) {
    let requests = [
        parts("a", "", ""),
        parts("a", "b", ""),
        parts("", "a", ""),
        parts("", "a", ""),
        parts("b", "a", ""),
        parts("", "b", ""),
        parts("", "", ""),
    ];
    assert_eq!(statuses(by, requests).await, [200, 429, 200, 429, 200, 200, 400]);
}

#[tokio::test]
async fn alternatives_of_asynchronous_keys_work_in_every_order() {
    one_or_the_other(now("x-one").or(now("x-two"))).await;
    one_or_the_other(later("x-one").or(now("x-two"))).await;
    one_or_the_other(now("x-one").or(later("x-two"))).await;
    one_or_the_other(later("x-one").or(later("x-two"))).await;
    one_or_the_other((later("x-one").or(now("x-two")), key::method())).await;
    one_or_the_other((key::method(), later("x-one").or(later("x-two")), key::path())).await;
    one_or_the_other((key::path(), now("x-one")).or((key::method(), later("x-two")))).await;
    one_or_the_other((now("x-one"), later("x-one")).or((later("x-two"), now("x-two")))).await;
}

/// Parts before and after an alternative distinguish keys, whichever alternative is taken.
#[tokio::test]
async fn an_alternative_is_a_part_like_any_other() {
    let requests = || [parts("a", "b", ""), parts("a", "", "b"), parts("x", "b", ""), parts("x", "", "b")];
    let twice = || requests().into_iter().chain(requests());
    let expected = [200, 200, 200, 200, 429, 429, 429, 429];
    assert_eq!(statuses((now("x-one"), now("x-two").or(now("x-three"))), twice()).await, expected);
    assert_eq!(statuses((now("x-one"), later("x-two").or(now("x-three"))), twice()).await, expected);
    assert_eq!(statuses((later("x-two").or(later("x-three")), now("x-one")), twice()).await, expected);
}

/// Not even if the parts imitate the encoding of the other.
#[tokio::test]
async fn no_key_equals_the_first_alternative_of_an_or() {
    let forged = |tag: u8| key::from_fn(move |_| Some(([tag], "a".to_owned())));
    for tag in 0..=3 {
        let requests = || [parts("a", "", ""), parts("", "", "")];
        assert_eq!(statuses(now("x-one").or(forged(tag)), requests()).await, [200, 200], "{tag}");
        assert_eq!(statuses(later("x-one").or(forged(tag)), requests()).await, [200, 200], "{tag}");
    }
}

/// Requests without a key share one bucket, even if some parts were found.
#[tokio::test]
async fn a_tuple_with_a_missing_part_is_missing() {
    let halves = [parts("a", "", ""), parts("x", "", ""), parts("a", "b", "")];
    let asked = async |by: Arc<dyn KeyExtractor>| {
        let limit = Limit::new("one", FixedWindow::per_minute(1)).by(by).on_missing_key(OnMissingKey::Share);
        let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default());
        let mut statuses = Vec::new();
        for request in halves.clone() {
            statuses.push(ask(&service, request).await.status.as_u16());
        }
        statuses
    };
    assert_eq!(asked(Arc::new((now("x-one"), now("x-two")))).await, [200, 429, 200]);
    assert_eq!(asked(Arc::new((now("x-one"), later("x-two")))).await, [200, 429, 200]);
    assert_eq!(asked(Arc::new((later("x-one"), now("x-two")))).await, [200, 429, 200]);
}

#[tokio::test]
async fn an_alternative_can_have_three_keys() {
    let requests = || [parts("a", "", ""), parts("", "a", ""), parts("", "", "a"), parts("", "", "a")];
    let expected = [200, 200, 200, 429];
    assert_eq!(statuses(now("x-one").or(now("x-two")).or(now("x-three")), requests()).await, expected);
    assert_eq!(statuses(later("x-one").or(now("x-two").or(later("x-three"))), requests()).await, expected);
    assert_eq!(statuses(now("x-one").or(later("x-two")).or(now("x-three")), requests()).await, expected);
}

/// A header that contains an address, as text or bytes, is not the key of that address.
#[tokio::test]
async fn a_header_never_takes_an_addresss_bucket() {
    let by = || now("x-api-key").or(key::peer_ip());
    for forged in ["AAAA", "65.65.65.65", "\u{4}AAAA"] {
        let Ok(value) = http::HeaderValue::from_bytes(forged.as_bytes()) else { continue };
        let mut request = from("192.0.2.1");
        request.headers_mut().insert("x-api-key", value);
        assert_eq!(statuses(by(), [request, from("65.65.65.65")]).await, [200, 200], "{forged:?}");
    }
    assert_eq!(statuses(by(), [from("65.65.65.65"), from("65.65.65.65")]).await, [200, 429]);
}

/// A part that the server does not provide is an error of the server, unless the client can send an alternative.
#[tokio::test]
async fn the_last_alternative_decides_the_status_of_a_missing_key() {
    let nobody = || [with(&[])];
    let [bad_request, server_error] = [StatusCode::BAD_REQUEST, StatusCode::INTERNAL_SERVER_ERROR].map(|s| s.as_u16());
    assert_eq!(statuses(key::peer_ip().or(now("x-one")), nobody()).await, [bad_request]);
    assert_eq!(statuses(now("x-one").or(key::peer_ip()), nobody()).await, [server_error]);
    assert_eq!(statuses(later("x-one").or(key::peer_ip()), nobody()).await, [server_error]);
    assert_eq!(statuses(key::peer_ip().or(later("x-one")), nobody()).await, [bad_request]);
}

/// Several limits, some with asynchronous keys: headers list them in the configured order.
#[tokio::test]
async fn limits_keep_their_order_and_their_policy() {
    let limit = |name: &str, tokens| Limit::new(name, FixedWindow::per_minute(tokens));
    let limits = [
        limit("later", 5).by(later("x-one")),
        limit("now", 4).by(now("x-two")),
        limit("skipped", 3).by(later("x-three")).on_missing_key(OnMissingKey::Skip),
        limit("shared", 2).by(later("x-three")).on_missing_key(OnMissingKey::Share),
        limit("all", 9),
    ];
    let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
    let answer = ask(&service, parts("a", "b", "")).await;
    let reported: Vec<(String, i64)> = answer
        .standings()
        .into_iter()
        .map(|member| (member.get("r").unwrap(), member.name))
        .map(|(r, n)| (n, r))
        .collect();
    let expected = [("later", 4), ("now", 3), ("shared", 1), ("all", 8)];
    assert_eq!(reported, expected.map(|(name, left)| (name.to_owned(), left)));
    assert_eq!(ask(&service, parts("a", "b", "c")).await.standings().len(), 5);
    assert_eq!(ask(&service, parts("", "b", "c")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&service, parts("a", "b", "c")).await.remaining_of("all"), 6);
}
