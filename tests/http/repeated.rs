//! Repeated headers, for everything that reads headers: a client gains nothing by repeating them.

use std::sync::Arc;

use tower::Layer;
use tower_ratelimit::key::{self, KeyExtractor, TrustedProxies};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{AddressList, FixedWindow, KeyList, OnMissingKey, RequestHead};

use crate::service::{Hello, KEY, builder, check_keys, get, layer, limited, lines, one, per_minute, serve, with};
use crate::store::paused_store;
use support::answer::{ask, statuses};
use support::faulty_store::{FaultyStore, Mode};

const POLICIES: [OnMissingKey; 3] = [OnMissingKey::Skip, OnMissingKey::Share, OnMissingKey::Reject];

fn keys(key: &str) -> KeyList {
    KeyList::new(key::header(KEY), [key])
}

/// Two keys do not evade a limit that skips requests without a key.
#[tokio::test]
async fn a_repeated_key_header_is_a_bad_request() {
    let limit = || one().by(key::header(KEY));
    let delayed = FaultyStore::over(paused_store(), Mode::Works);
    let policies = POLICIES.map(|policy| builder(limit().on_missing_key(policy)));
    for builder in policies.into_iter().chain([builder(limit()), builder(limit()).store(delayed)]) {
        let requests: [&[&str]; 5] = [&["ann", "bob"], &["ann", "ann"], &["", "ann"], &["ann"], &["ann"]];
        check_keys(builder, requests, [400, 400, 400, 200, 429]).await;
    }
    let answer = ask(&limited(limit()), lines(KEY, &["ann", "bob"])).await;
    assert_eq!(answer.body, "Ambiguous client identifier: send it once.\n");
}

#[tokio::test]
async fn repeated_cookies_and_query_parameters_are_bad_requests() {
    let limit = |by: Arc<dyn KeyExtractor>| limited(one().by(by).on_missing_key(OnMissingKey::Skip));
    let service = limit(Arc::new(key::cookie("sid").or(key::peer_ip())));
    let cookies: [&[&str]; 6] = [&["sid=7"], &["a=1; sid=7"], &["sid=7; sid=8"], &["sid=7", "sid=8"], &["a=1"], &[]];
    let requests = cookies.map(|cookies| lines("cookie", cookies));
    assert_eq!(statuses(&service, requests).await, [200, 429, 400, 400, 200, 429]);
    let service = limit(Arc::new(key::query("user")));
    let uris = ["/?user=ann", "/?x=1&user=%61nn", "/?user=ann&user=bob", "/?user=bob", "/?user=", "/"];
    assert_eq!(statuses(&service, uris.map(get)).await, [200, 429, 400, 200, 200, 200]);
}

#[tokio::test]
async fn repeating_a_key_header_leads_to_no_other_bucket() {
    let later = || key::from_async_fn(|_| async { Some(7) });
    let extractors: [Arc<dyn KeyExtractor>; 4] = [
        Arc::new(key::header(KEY).or(key::peer_ip())),
        Arc::new((key::peer_ip(), key::header(KEY)).or(key::peer_ip())),
        // The same if another part of the key is asynchronous.
        Arc::new((later(), key::header(KEY)).or(key::peer_ip())),
        Arc::new((key::header(KEY), later()).or(key::peer_ip())),
    ];
    for by in extractors {
        let requests: [&[&str]; 4] = [&["ann"], &["ann"], &["ann", "bob"], &[]];
        check_keys(builder(one().by(by)), requests, [200, 429, 400, 200]).await;
    }
}

#[tokio::test]
async fn a_list_rejects_a_key_in_any_header_line() {
    let hundred = || builder(per_minute("all", 100));
    let requests: [&[&str]; 7] =
        [&["leaked"], &["zzz", "leaked"], &["leaked", "zzz"], &["", "leaked"], &["zzz", "yyy"], &["zzz"], &[]];
    let expected = [403, 403, 403, 403, 200, 200, 200];
    check_keys(hundred().always_reject(keys("leaked")), requests, expected).await;
    // An ambiguous exception does not apply.
    let rejected = keys("leaked").or(when::path_prefix("/")).and(when::not(keys("ours")));
    let requests: [&[&str]; 4] = [&["ours"], &["ours", "leaked"], &["zzz", "ours"], &["zzz"]];
    check_keys(hundred().always_reject(rejected), requests, [200, 403, 403, 403]).await;
    // A request with several keys is rejected.
    let both = KeyList::new((key::header("x-tenant"), key::header(KEY)), [("shop", "leaked")]);
    let requests =
        [with(&[("x-tenant", "shop"), (KEY, "zzz"), (KEY, "leaked")]), with(&[("x-tenant", "shop"), (KEY, "zzz")])];
    assert_eq!(statuses(&serve(hundred().always_reject(both)), requests).await, [403, 200]);
}

#[tokio::test]
async fn never_limit_requires_all_lines_of_a_header_to_match() {
    let requests: [&[&str]; 5] = [&["zzz"], &["ours"], &["ours", "zzz"], &["zzz", "ours"], &["ours", "ours"]];
    check_keys(builder(one()).never_limit(keys("ours")), requests, [200, 200, 429, 429, 429]).await;
    // All lines must meet a condition.
    let ours = || when::header(KEY, "ours");
    for builder in [
        builder(one()).never_limit(ours()),
        builder(one()).never_limit(when::path_prefix("/never").or(ours())),
        builder(one()).never_limit(when::path_prefix("/").and(ours())),
    ] {
        check_keys(builder, requests, [200, 200, 429, 429, 200]).await;
    }
    let not_free = when::not(when::header(KEY, "free"));
    check_keys(builder(one()).never_limit(not_free), [&["free"], &["free", "pro"], &["pro"]], [200, 429, 200]).await;
}

#[tokio::test]
async fn a_limit_applies_where_any_line_meets_its_condition() {
    let (free, never) = (|| when::header(KEY, "free"), || when::path_prefix("/never"));
    for limit in [
        one().when(free()),
        one().when(when::not(when::header(KEY, "pro"))),
        one().when(keys("free")),
        // The same if another condition, which does not read the header, comes first.
        one().when(never().or(free())),
        one().when(when::not(never()).and(free())),
    ] {
        let requests: [&[&str]; 4] = [&["free"], &["pro", "free"], &["free", "pro"], &["pro"]];
        check_keys(builder(limit), requests, [200, 429, 429, 200]).await;
    }
}

#[tokio::test]
async fn another_size_applies_if_all_header_lines_match() {
    let limit = one().size_when(when::header(KEY, "pro"), FixedWindow::per_day(100));
    let requests: [&[&str]; 5] = [&["free"], &["pro"], &["pro", "free"], &["free", "pro"], &["pro", "pro"]];
    check_keys(builder(limit), requests, [200, 200, 429, 429, 200]).await;
}

#[tokio::test]
async fn a_client_that_sends_two_addresses_is_rejected_but_never_exempt() {
    let address = || TrustedProxies::hops(1).single_valued("x-real-ip");
    let list = || AddressList::new(address(), ["198.51.100.1"]);
    let one_by_address = || one().by(address().or(key::peer_ip()));
    let (once, other) = (&["198.51.100.1"][..], &["192.0.2.9"][..]);
    let (twice, reverse) = (&["198.51.100.1", "192.0.2.9"][..], &["192.0.2.9", "198.51.100.1"][..]);
    for (builder, requests, expected) in [
        (builder(one_by_address()), [once, once, twice, &[]], [200, 429, 400, 200]),
        (builder(one()).always_reject(list()), [twice, reverse, once, other], [403, 403, 403, 200]),
        (builder(one()).never_limit(list()), [twice, twice, once, other], [200, 429, 200, 429]),
    ] {
        let requests = requests.map(|values| lines("x-real-ip", values));
        assert_eq!(statuses(&serve(builder), requests).await, expected);
    }
}

/// An override applies only if all lines name its key.
#[tokio::test]
async fn one_of_two_header_lines_does_not_select_an_override() {
    let limits = layer(one().by(key::header(KEY)).overridable());
    limits.limit("one").unwrap().set_override("vip", FixedWindow::per_minute(100), None).await.unwrap();
    let requests: [&[&str]; 6] = [&["vip"], &["vip"], &["ann"], &["ann"], &["vip", "ann"], &["ann", "vip"]];
    let requests = requests.map(|values| lines(KEY, values));
    assert_eq!(statuses(&limits.layer(Hello::default()), requests).await, [200, 200, 200, 429, 400, 400]);
}

#[test]
fn a_closure_sees_no_header_that_is_repeated() {
    let request = with(&[("x-one", "a"), ("x-two", "a"), ("x-two", "b")]);
    let head = RequestHead::of(&request);
    assert_eq!((head.header("x-one"), head.header("x-two")), (Some("a"), None));
}

/// Closures read headers by `RequestHead::header`, which returns no value if a header is repeated.
#[tokio::test]
async fn repeating_a_header_does_not_evade_a_closure() {
    let is = |value: &'static str| when::from_fn(move |head| head.header(KEY) == Some(value));
    let one_by_address = || builder(one().by(key::peer_ip()));
    let rejected = one_by_address().always_reject(is("leaked"));
    check_keys(rejected, [&["leaked"], &["leaked", "zzz"], &["ann"]], [403, 403, 200]).await;
    let exempt = one_by_address().never_limit(is("leaked"));
    check_keys(exempt, [&["leaked"], &["ann"], &["leaked", "ann"]], [200, 200, 429]).await;
    // A repeated header does not make a request exempt by a condition, either.
    let exempt = one_by_address().never_limit(when::from_fn(|head| head.header(KEY).is_none()));
    check_keys(exempt, [&["ann"], &["ann", "bob"], &[]], [200, 429, 200]).await;
    check_keys(builder(one().when(is("free"))), [&["free"], &["free", "zzz"], &["paid"]], [200, 429, 200]).await;
    let by = || key::from_fn(|head| head.header(KEY).map(str::to_owned)).or(key::peer_ip());
    let later = key::from_async_fn(|head| {
        let key = head.header(KEY).map(str::to_owned);
        async move { key }
    });
    let limits = POLICIES.map(|policy| one().by(by()).on_missing_key(policy));
    for limit in limits.into_iter().chain([one().by(later).on_missing_key(OnMissingKey::Skip)]) {
        check_keys(builder(limit), [&["ann"], &["ann", "bob"], &["ann"]], [200, 400, 429]).await;
    }
}

#[tokio::test]
async fn a_shadow_limit_rejects_no_repeated_header() {
    let limit = || one().by(key::header(KEY)).on_missing_key(OnMissingKey::Skip);
    for builder in [builder(limit().shadow()), builder(limit()).shadow()] {
        check_keys(builder, [&["ann"], &["ann", "bob"], &[]], [200; 3]).await;
    }
}
