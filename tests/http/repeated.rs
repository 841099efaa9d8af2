//! Repeated headers, for everything that reads headers: a client gains nothing by repeating them.

use http::{Request, StatusCode};
use support::faulty_store::{FaultyStore, Mode};
use tower::Layer;
use tower_ratelimit::key::{self, KeyExtractor, TrustedProxies};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{AddressList, FixedWindow, KeyList, Limit, OnMissingKey, RateLimitLayer, RequestHead};

use crate::service::{Hello, from, with};
use crate::store::paused_store;
use support::answer::ask;

const KEY: &str = "x-api-key";

fn one() -> Limit {
    Limit::new("one", FixedWindow::per_day(1))
}

/// Returns `GET /` from 192.0.2.1, with a line of `name` for each value.
fn lines(name: &str, values: &[&str]) -> Request<()> {
    let headers: Vec<_> = values.iter().map(|value| (name, *value)).collect();
    let mut request = from("192.0.2.1");
    *request.headers_mut() = with(&headers).headers().clone();
    request
}

/// Returns the statuses of consecutive requests with these values of `x-api-key`.
async fn statuses(layer: RateLimitLayer, requests: &[&[&str]]) -> Vec<u16> {
    let service = layer.layer(Hello::default());
    let mut statuses = Vec::new();
    for values in requests {
        statuses.push(ask(&service, lines(KEY, values)).await.status.as_u16());
    }
    statuses
}

#[tokio::test]
async fn a_repeated_key_header_is_a_bad_request() {
    let requests: [&[&str]; 5] = [&["ann", "bob"], &["ann", "ann"], &["", "ann"], &["ann"], &["ann"]];
    let expected = [400, 400, 400, 200, 429];
    let limits = || one().by(key::header(KEY));
    assert_eq!(statuses(RateLimitLayer::builder([limits()]).store(paused_store()).build(), &requests).await, expected);
    assert_eq!(
        statuses(
            RateLimitLayer::builder([limits()]).store(FaultyStore::over(paused_store(), Mode::Works)).build(),
            &requests
        )
        .await,
        expected
    );
    // Two keys do not evade a limit that skips requests without a key.
    for policy in [OnMissingKey::Skip, OnMissingKey::Share, OnMissingKey::Reject] {
        let limits = RateLimitLayer::builder([limits().on_missing_key(policy)]).store(paused_store()).build();
        assert_eq!(statuses(limits, &requests).await, expected, "{policy:?}");
    }
}

#[tokio::test]
async fn repeated_cookies_and_query_parameters_are_bad_requests() {
    let layer =
        |by: Limit| RateLimitLayer::builder([by.on_missing_key(OnMissingKey::Skip)]).store(paused_store()).build();
    let service = layer(one().by(key::cookie("sid").or(key::peer_ip()))).layer(Hello::default());
    let cases: [(&[&str], u16); 6] = [
        (&["sid=7"], 200),
        (&["a=1; sid=7"], 429),
        (&["sid=7; sid=8"], 400),
        (&["sid=7", "sid=8"], 400),
        (&["a=1"], 200),
        (&[], 429),
    ];
    for (cookies, expected) in cases {
        assert_eq!(ask(&service, lines("cookie", cookies)).await.status, expected, "{cookies:?}");
    }
    let service = layer(one().by(key::query("user"))).layer(Hello::default());
    for (uri, expected) in [
        ("/?user=ann", 200),
        ("/?x=1&user=%61nn", 429),
        ("/?user=ann&user=bob", 400),
        ("/?user=bob", 200),
        ("/?user=", 200),
        ("/", 200),
    ] {
        let mut request = from("192.0.2.1");
        *request.uri_mut() = uri.parse().unwrap();
        assert_eq!(ask(&service, request).await.status, expected, "{uri}");
    }
}

#[tokio::test]
async fn repeating_a_key_header_leads_to_no_other_bucket() {
    let requests: [&[&str]; 4] = [&["ann"], &["ann"], &["ann", "bob"], &[]];
    let expected = [200, 429, 400, 200];
    let limits = |by| RateLimitLayer::builder([by]).store(paused_store()).build();
    assert_eq!(statuses(limits(one().by(key::header(KEY).or(key::peer_ip()))), &requests).await, expected);
    let pair = (key::peer_ip(), key::header(KEY)).or(key::peer_ip());
    assert_eq!(statuses(limits(one().by(pair)), &requests).await, expected);
    // The same if another part of the key is asynchronous.
    let later = || key::from_async_fn(|_| async { Some(7) });
    assert_eq!(statuses(limits(one().by((later(), key::header(KEY)).or(key::peer_ip()))), &requests).await, expected);
    assert_eq!(statuses(limits(one().by((key::header(KEY), later()).or(key::peer_ip()))), &requests).await, expected);
}

#[tokio::test]
async fn the_response_says_that_the_header_was_repeated() {
    let service =
        RateLimitLayer::builder([one().by(key::header(KEY))]).store(paused_store()).build().layer(Hello::default());
    let answer = ask(&service, lines(KEY, &["ann", "bob"])).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.body, "Ambiguous client identifier: send it once.\n");
}

#[tokio::test]
async fn a_list_rejects_a_key_in_any_header_line() {
    let leaked = || KeyList::new(key::header(KEY), ["leaked"]);
    let refused: [&[&str]; 7] =
        [&["leaked"], &["zzz", "leaked"], &["leaked", "zzz"], &["", "leaked"], &["zzz", "yyy"], &["zzz"], &[]];
    let limits = || RateLimitLayer::builder([Limit::new("all", FixedWindow::per_day(100))]).store(paused_store());
    let expected = [403, 403, 403, 403, 200, 200, 200];
    assert_eq!(statuses(limits().always_reject(leaked()).build(), &refused).await, expected);
    // An ambiguous exception does not apply.
    let ours = KeyList::new(key::header(KEY), ["ours"]);
    let refuse = leaked().or(when::path_prefix("/")).and(when::not(ours));
    let requests: [&[&str]; 4] = [&["ours"], &["ours", "leaked"], &["zzz", "ours"], &["zzz"]];
    assert_eq!(statuses(limits().always_reject(refuse).build(), &requests).await, [200, 403, 403, 403]);
    // A request with several keys is rejected.
    let both = KeyList::new((key::header("x-tenant"), key::header(KEY)), [("shop", "leaked")]);
    let service = limits().always_reject(both).build().layer(Hello::default());
    let request = |keys: [&str; 2]| with(&[("x-tenant", "shop"), (KEY, keys[0]), (KEY, keys[1])]);
    assert_eq!(ask(&service, request(["zzz", "leaked"])).await.status, StatusCode::FORBIDDEN);
    let single = with(&[("x-tenant", "shop"), (KEY, "zzz")]);
    assert_eq!(ask(&service, single).await.status, StatusCode::OK);
}

#[tokio::test]
async fn never_limit_requires_all_lines_of_a_header_to_match() {
    let requests: [&[&str]; 5] = [&["zzz"], &["ours"], &["ours", "zzz"], &["zzz", "ours"], &["ours", "ours"]];
    let expected = [200, 200, 429, 429, 429];
    let limits = || RateLimitLayer::builder([one()]).store(paused_store());
    let ours = KeyList::new(key::header(KEY), ["ours"]);
    assert_eq!(statuses(limits().never_limit(ours).build(), &requests).await, expected);
    // All lines must meet a condition.
    let expected = [200, 200, 429, 429, 200];
    assert_eq!(statuses(limits().never_limit(when::header(KEY, "ours")).build(), &requests).await, expected);
    let ours = when::path_prefix("/never").or(when::header(KEY, "ours"));
    assert_eq!(statuses(limits().never_limit(ours).build(), &requests).await, expected);
    let ours = when::path_prefix("/").and(when::header(KEY, "ours"));
    assert_eq!(statuses(limits().never_limit(ours).build(), &requests).await, expected);
    let not_free = when::not(when::header(KEY, "free"));
    let requests: [&[&str]; 3] = [&["free"], &["free", "pro"], &["pro"]];
    assert_eq!(statuses(limits().never_limit(not_free).build(), &requests).await, [200, 429, 200]);
}

#[tokio::test]
async fn a_limit_applies_where_any_line_meets_its_condition() {
    let limits = |condition: Box<dyn Fn(Limit) -> Limit>| {
        RateLimitLayer::builder([condition(one())]).store(paused_store()).build()
    };
    let requests: [&[&str]; 4] = [&["free"], &["pro", "free"], &["free", "pro"], &["pro"]];
    let free = limits(Box::new(|limit| limit.when(when::header(KEY, "free"))));
    assert_eq!(statuses(free, &requests).await, [200, 429, 429, 200]);
    let not_pro = limits(Box::new(|limit| limit.when(when::not(when::header(KEY, "pro")))));
    assert_eq!(statuses(not_pro, &requests).await, [200, 429, 429, 200]);
    let listed = limits(Box::new(|limit| limit.when(KeyList::new(key::header(KEY), ["free"]))));
    assert_eq!(statuses(listed, &requests).await, [200, 429, 429, 200]);
    // The same if another condition, which does not read the header, comes first.
    let never = || when::path_prefix("/never");
    let either = limits(Box::new(move |limit| limit.when(never().or(when::header(KEY, "free")))));
    assert_eq!(statuses(either, &requests).await, [200, 429, 429, 200]);
    let both = limits(Box::new(move |limit| limit.when(when::not(never()).and(when::header(KEY, "free")))));
    assert_eq!(statuses(both, &requests).await, [200, 429, 429, 200]);
}

#[tokio::test]
async fn another_size_applies_if_all_header_lines_match() {
    let limit = one().size_when(when::header(KEY, "pro"), FixedWindow::per_day(100));
    let requests: [&[&str]; 5] = [&["free"], &["pro"], &["pro", "free"], &["free", "pro"], &["pro", "pro"]];
    assert_eq!(
        statuses(RateLimitLayer::builder([limit]).store(paused_store()).build(), &requests).await,
        [200, 200, 429, 429, 200]
    );
}

#[tokio::test]
async fn an_address_that_is_given_twice_is_a_bad_request() {
    let address = || TrustedProxies::hops(1).single_valued("x-real-ip");
    let limit = one().by(address().or(key::peer_ip()));
    let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default());
    let status = async |values: &[&str]| ask(&service, lines("x-real-ip", values)).await.status.as_u16();
    assert_eq!(status(&["198.51.100.1"]).await, 200);
    assert_eq!(status(&["198.51.100.1"]).await, 429);
    assert_eq!(status(&["198.51.100.1", "198.51.100.2"]).await, 400);
    assert_eq!(status(&[]).await, 200);
}

#[tokio::test]
async fn a_client_that_sends_two_addresses_is_rejected_but_never_exempt() {
    let list = || AddressList::new(TrustedProxies::hops(1).single_valued("x-real-ip"), ["198.51.100.1"]);
    let limits = || RateLimitLayer::builder([one()]).store(paused_store());
    let request = |values: &[&str]| lines("x-real-ip", values);
    let service = limits().always_reject(list()).build().layer(Hello::default());
    for values in [["198.51.100.1", "192.0.2.9"], ["192.0.2.9", "198.51.100.1"]] {
        assert_eq!(ask(&service, request(&values)).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(ask(&service, request(&["192.0.2.9"])).await.status, StatusCode::OK);
    let service = limits().never_limit(list()).build().layer(Hello::default());
    for expected in [false, true] {
        let answer = ask(&service, request(&["198.51.100.1", "192.0.2.9"])).await;
        assert_eq!(answer.is_refused(), expected);
    }
    assert!(!ask(&service, request(&["198.51.100.1"])).await.is_refused());
}

/// The lines of a list are joined, so an address that a proxy adds is not a repetition.
#[tokio::test]
async fn forwarding_headers_may_have_many_lines() {
    let limit = one().by(TrustedProxies::hops(1).x_forwarded_for());
    let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default());
    let request = || lines("x-forwarded-for", &["203.0.113.9", "198.51.100.1"]);
    assert!(!ask(&service, request()).await.is_refused());
    assert!(ask(&service, request()).await.is_refused());
}

/// An override applies only if all lines name its key.
#[tokio::test]
async fn one_of_two_header_lines_does_not_select_an_override() {
    let limits = RateLimitLayer::builder([one().by(key::header(KEY)).overridable()]).store(paused_store()).build();
    limits.limit("one").unwrap().set_override("vip", FixedWindow::per_day(100), None).await.unwrap();
    let requests: [&[&str]; 6] = [&["vip"], &["vip"], &["ann"], &["ann"], &["vip", "ann"], &["ann", "vip"]];
    assert_eq!(statuses(limits, &requests).await, [200, 200, 200, 429, 400, 400]);
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
    let any = || RateLimitLayer::builder([one().by(key::peer_ip())]).store(paused_store());
    let leaked = || when::from_fn(|head| head.header(KEY) == Some("leaked"));
    let refused = any().always_reject(leaked()).build();
    assert_eq!(statuses(refused, &[&["leaked"], &["leaked", "zzz"], &["ann"]]).await, [403, 403, 200]);
    let exempt = any().never_limit(leaked()).build();
    assert_eq!(statuses(exempt, &[&["leaked"], &["ann"], &["leaked", "ann"]]).await, [200, 200, 429]);
    // A repeated header does not make a request exempt by a condition, either.
    let exempt = any().never_limit(when::from_fn(|head| head.header(KEY).is_none())).build();
    assert_eq!(statuses(exempt, &[&["ann"], &["ann", "bob"], &[]]).await, [200, 429, 200]);
    let free = one().when(when::from_fn(|head| head.header(KEY) == Some("free")));
    let limits = RateLimitLayer::builder([free]).store(paused_store()).build();
    assert_eq!(statuses(limits, &[&["free"], &["free", "zzz"], &["paid"]]).await, [200, 429, 200]);
    for policy in [OnMissingKey::Skip, OnMissingKey::Share, OnMissingKey::Reject] {
        let by = key::from_fn(|head| head.header(KEY).map(str::to_owned)).or(key::peer_ip());
        let limits = RateLimitLayer::builder([one().by(by).on_missing_key(policy)]).store(paused_store()).build();
        assert_eq!(statuses(limits, &[&["ann"], &["ann", "bob"], &["ann"]]).await, [200, 400, 429], "{policy:?}");
    }
    let later = key::from_async_fn(|head| {
        let key = head.header(KEY).map(str::to_owned);
        async move { key }
    });
    let limits =
        RateLimitLayer::builder([one().by(later).on_missing_key(OnMissingKey::Skip)]).store(paused_store()).build();
    assert_eq!(statuses(limits, &[&["ann"], &["ann", "bob"], &["ann"]]).await, [200, 400, 429]);
}

#[tokio::test]
async fn a_shadow_limit_rejects_no_repeated_header() {
    let limit = || one().by(key::header(KEY));
    let requests: [&[&str]; 3] = [&["ann"], &["ann", "bob"], &[]];
    let limits =
        RateLimitLayer::builder([limit().on_missing_key(OnMissingKey::Skip).shadow()]).store(paused_store()).build();
    assert_eq!(statuses(limits, &requests).await, [200; 3]);
    let limits =
        RateLimitLayer::builder([limit().on_missing_key(OnMissingKey::Skip)]).store(paused_store()).shadow().build();
    assert_eq!(statuses(limits, &requests).await, [200; 3]);
}
