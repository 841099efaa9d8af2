//! Keys with several parts, synchronous and asynchronous, and alternatives.

use std::pin::Pin;
use std::sync::Arc;

use http::Request;
use tower_ratelimit::key::KeyExtractor;
use tower_ratelimit::{OnMissingKey, RequestHead, key};

use crate::service::{builder, from, limited, lines, one, per_minute, serve, with};
use crate::store::paused_store;
use support::answer::{ask, statuses};

/// Extracts the value of a header synchronously.
fn now(name: &'static str) -> impl KeyExtractor {
    key::header(name)
}

/// Extracts the value of a header asynchronously.
fn later(name: &'static str) -> impl KeyExtractor {
    key::from_async_fn(move |head: &RequestHead<'_>| {
        let found = head.header(name).map(str::to_owned);
        Box::pin(async move {
            tokio::task::yield_now().await;
            found
        }) as Found
    })
}

type Found = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Checks the statuses of requests with one token for each key.
async fn check<const N: usize>(by: impl KeyExtractor, requests: [Request<()>; N], expected: [u16; N]) {
    assert_eq!(statuses(&limited(one().by(by)), requests).await, expected);
}

/// Returns requests with these values of the headers `x-one`, `x-two` and `x-three`. A `-` leaves its header out.
fn parts<const N: usize>(requests: [&str; N]) -> [Request<()>; N] {
    requests.map(|values| {
        let headers = ["x-one", "x-two", "x-three"].into_iter().zip(values.split(' '));
        with(&headers.filter(|(_, value)| *value != "-").collect::<Vec<_>>())
    })
}

/// Each part distinguishes keys, parts are not concatenated, and a missing part is a missing key.
async fn every_part_counts(by: impl KeyExtractor) {
    let requests =
        ["a b c", "a b c", "x b c", "a x c", "a b x", "c b a", "ab b c", "a b bc", "- b c", "a - c", "a b -", "c b a"];
    check(by, parts(requests), [200, 429, 200, 200, 200, 200, 200, 200, 400, 400, 400, 429]).await;
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
    let limited = |by: Arc<dyn KeyExtractor>| serve(builder(one().by(by)).store(store.clone()));
    let first = limited(Arc::new((now("x-one"), later("x-two"), now("x-three"))));
    let second = limited(Arc::new((later("x-one"), now("x-two"), later("x-three"))));
    for (one, other, request) in [(&first, &second, parts(["a b c"])), (&second, &first, parts(["a c b"]))] {
        assert_eq!(statuses(one, request.clone()).await, [200]);
        assert_eq!(statuses(other, request).await, [429]);
    }
}

/// The first key if it exists, or else the second. Both never share a bucket, even if their values are equal.
async fn one_or_the_other(by: impl KeyExtractor) {
    let requests = ["a - -", "a b -", "- a -", "- a -", "b a -", "- b -", "- - -"];
    check(by, parts(requests), [200, 429, 200, 429, 200, 200, 400]).await;
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
    let parts = parts(["a b -", "a - b", "x b -", "x - b"]);
    let by: [Arc<dyn KeyExtractor>; 3] = [
        Arc::new((now("x-one"), now("x-two").or(now("x-three")))),
        Arc::new((now("x-one"), later("x-two").or(now("x-three")))),
        Arc::new((later("x-two").or(later("x-three")), now("x-one"))),
    ];
    for by in by {
        let twice: [_; 8] = std::array::from_fn(|index| parts[index % 4].clone());
        check(by, twice, [200, 200, 200, 200, 429, 429, 429, 429]).await;
    }
}

/// Not even if the parts imitate the encoding of the other.
#[tokio::test]
async fn no_key_equals_the_first_alternative_of_an_or() {
    let forged = |tag: u8| key::from_fn(move |_| Some(([tag], "a".to_owned())));
    for tag in 0..=3 {
        let requests = || parts(["a - -", "- - -"]);
        check(now("x-one").or(forged(tag)), requests(), [200, 200]).await;
        check(later("x-one").or(forged(tag)), requests(), [200, 200]).await;
    }
}

/// Requests without a key share one bucket, even if some parts were found.
#[tokio::test]
async fn a_tuple_with_a_missing_part_is_missing() {
    let by: [Arc<dyn KeyExtractor>; 3] = [
        Arc::new((now("x-one"), now("x-two"))),
        Arc::new((now("x-one"), later("x-two"))),
        Arc::new((later("x-one"), now("x-two"))),
    ];
    for by in by {
        let service = limited(one().by(by).on_missing_key(OnMissingKey::Share));
        let halves = parts(["a - -", "x - -", "a b -"]);
        assert_eq!(statuses(&service, halves).await, [200, 429, 200]);
    }
}

#[tokio::test]
async fn an_alternative_can_have_three_keys() {
    let by: [Arc<dyn KeyExtractor>; 3] = [
        Arc::new(now("x-one").or(now("x-two")).or(now("x-three"))),
        Arc::new(later("x-one").or(now("x-two").or(later("x-three")))),
        Arc::new(now("x-one").or(later("x-two")).or(now("x-three"))),
    ];
    for by in by {
        let requests = parts(["a - -", "- a -", "- - a", "- - a"]);
        check(by, requests, [200, 200, 200, 429]).await;
    }
}

/// A header that contains an address, as text or bytes, is not the key of that address.
#[tokio::test]
async fn a_header_never_takes_an_addresss_bucket() {
    let by = || now("x-api-key").or(key::peer_ip());
    for forged in ["AAAA", "65.65.65.65"] {
        let request = lines("x-api-key", &[forged]);
        check(by(), [request, from("65.65.65.65"), from("65.65.65.65")], [200, 200, 429]).await;
    }
}

/// A part that the server does not provide is an error of the server, unless the client can send an alternative.
#[tokio::test]
async fn the_last_alternative_decides_the_status_of_a_missing_key() {
    check(key::peer_ip().or(now("x-one")), [with(&[])], [400]).await;
    check(key::peer_ip().or(later("x-one")), [with(&[])], [400]).await;
    check(now("x-one").or(key::peer_ip()), [with(&[])], [500]).await;
    check(later("x-one").or(key::peer_ip()), [with(&[])], [500]).await;
}

/// Several limits, some with asynchronous keys: headers list them in the configured order.
#[tokio::test]
async fn limits_keep_their_order_and_their_policy() {
    let service = limited([
        per_minute("later", 5).by(later("x-one")),
        per_minute("now", 4).by(now("x-two")),
        per_minute("skipped", 3).by(later("x-three")).on_missing_key(OnMissingKey::Skip),
        per_minute("shared", 2).by(later("x-three")).on_missing_key(OnMissingKey::Share),
        per_minute("all", 9),
    ]);
    let standings = "\"later\";r=4;t=60, \"now\";r=3;t=60, \"shared\";r=1;t=60, \"all\";r=8;t=60";
    let [some, all, missing] = parts(["a b -", "a b c", "- b c"]);
    assert_eq!(ask(&service, some).await.all("ratelimit"), [standings]);
    assert_eq!(ask(&service, all.clone()).await.standings().len(), 5);
    assert_eq!(ask(&service, missing).await.status, 400);
    assert_eq!(ask(&service, all).await.remaining_of("all"), 6);
}
