//! Limits in quota mode: a request is denied only if none of them has capacity.

use std::time::Duration;

use http::StatusCode;
use support::limits::acquire_costs;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Decision, FixedWindow, Limit, Limiter, Penalty, RateLimitLayer, TokenBucket, key};

use crate::live::app;
use support::answer::ask;
use support::store_fixture::{StoreFixture, get, on_both_stores};

const DAY: Duration = Duration::from_secs(86_400);

fn quota(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens)).quota_mode()
}

fn limiter(fixture: &StoreFixture, limits: impl IntoIterator<Item = Limit>) -> Limiter {
    Limiter::builder(limits).store(fixture.store.clone()).deadline(Duration::from_secs(30)).build()
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

/// As in the integration test of the reference: quotas of 1 and 2 are charged together, and allow 2 requests.
async fn each_quota_with_capacity_is_charged_and_the_last_one_denies(fixture: StoreFixture) {
    let limiter = limiter(&fixture, [quota("one", 1), quota("two", 2)]);
    for (is_allowed, left) in [(true, [0, 1]), (true, [0, 0]), (false, [0, 0])] {
        let decision = limiter.acquire("ann", 1).await.unwrap();
        assert_eq!((decision.is_allowed(), remaining(&decision)), (is_allowed, left.to_vec()));
    }
    // A cost may fit into one quota, but not into the other.
    let decision = limiter.acquire("bob", 2).await.unwrap();
    assert_eq!((decision.is_allowed(), remaining(&decision)), (true, vec![1, 0]));
    let receipt = decision.into_receipt();
    assert!(limiter.acquire("bob", 1).await.unwrap().is_allowed(), "the first quota has capacity");
    assert!(!limiter.acquire("bob", 1).await.unwrap().is_allowed());
    limiter.refund(receipt).await.unwrap();
    assert_eq!(remaining(&limiter.peek("bob", 1).await.unwrap()), [0, 2]);
}

async fn a_single_quota_denies_like_any_limit(fixture: StoreFixture) {
    let limiter = limiter(&fixture, [quota("alone", 1)]);
    assert!(limiter.acquire("ann", 1).await.unwrap().is_allowed());
    let denied = limiter.acquire("ann", 1).await.unwrap();
    assert!(!denied.is_allowed() && denied.retry_after().is_some_and(|wait| wait <= DAY));
    assert!(!limiter.acquire("ann", 1).await.unwrap().is_allowed(), "the same with cached denials");
}

async fn another_limit_that_denies_keeps_quotas_from_being_charged(fixture: StoreFixture) {
    let burst = Limit::new("burst", FixedWindow::per_day(2));
    let limiter = limiter(&fixture, [quota("one", 1), burst, quota("nine", 9)]);
    for left in [[0, 1, 8], [0, 0, 7], [0, 0, 7]] {
        assert_eq!(remaining(&limiter.acquire("ann", 1).await.unwrap()), left);
    }
    let denied = limiter.acquire("ann", 1).await.unwrap();
    let counts: Vec<bool> = denied.outcomes().iter().map(|outcome| outcome.is_enforced()).collect();
    assert!(!denied.is_allowed());
    assert_eq!(counts, [false, true, true]);
    // A cost of 0 is allowed by every quota.
    assert!(acquire_costs(&limiter, "ann", &[1, 0, 0]).await.unwrap().is_allowed());
}

async fn the_wait_is_that_of_the_quota_with_the_earliest_capacity(fixture: StoreFixture) {
    let slow = Limit::new("slow", TokenBucket::new(1, 1, DAY)).quota_mode();
    let fast = Limit::new("fast", TokenBucket::new(2, 1, Duration::from_secs(3_600))).quota_mode();
    let limiter = limiter(&fixture, [slow, fast]);
    for _ in 0..2 {
        assert!(limiter.acquire("ann", 1).await.unwrap().is_allowed());
    }
    for _ in 0..2 {
        let wait = limiter.acquire("ann", 1).await.unwrap().retry_after().expect("a wait");
        assert!(wait > Duration::from_secs(1_800) && wait <= Duration::from_secs(3_600), "{wait:?}");
    }
    // A cost of 2 fits into only one quota, after two hours. A cost of 3 fits into none.
    assert!(
        limiter.acquire("ann", 2).await.unwrap().retry_after().is_some_and(|wait| wait > Duration::from_secs(5_400))
    );
    assert_eq!(limiter.acquire("ann", 3).await.unwrap().retry_after(), None);
}

/// The example of `src/guide/rules.md`.
async fn headers_describe_the_quotas_with_capacity(fixture: StoreFixture) {
    let document = include_str!("../../../src/guide/rules.md");
    let (_, section) = document.split_once("# Quotas\n").expect("a section");
    let yaml = section.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    let limits = RateLimitLayer::builder(limits).store(fixture.store.clone()).deadline(Duration::from_secs(30)).build();
    let app = app(limits);
    let request = || {
        let mut request = get("/", "ann");
        request.headers_mut().insert("x-team", "red".parse().unwrap());
        request
    };
    let reported = [
        (StatusCode::OK, vec![("own", 1), ("team", 2)]),
        (StatusCode::OK, vec![("own", 0), ("team", 1)]),
        (StatusCode::OK, vec![("team", 0)]),
        (StatusCode::TOO_MANY_REQUESTS, vec![("own", 0)]),
    ];
    for (status, left) in reported {
        let answer = ask(&app, request()).await;
        assert_eq!((answer.status, crate::live::left(&answer)), (status, crate::live::are(&left)));
    }
}

async fn a_quota_uses_its_overage_before_the_request_is_denied(fixture: StoreFixture) {
    let limiter = limiter(&fixture, [quota("soft", 2).soft(50), quota("hard", 1)]);
    for (is_allowed, uses_overage) in [(true, false), (true, false), (true, true), (false, false)] {
        let decision = limiter.acquire("ann", 1).await.unwrap();
        let outcome = &decision.outcomes()[0];
        assert_eq!((decision.is_allowed(), outcome.uses_overage()), (is_allowed, uses_overage), "{decision:?}");
    }
}

async fn an_override_raises_a_quota_for_its_key_only(fixture: StoreFixture) {
    let limiter = limiter(&fixture, [quota("own", 1).overridable(), quota("team", 1)]);
    limiter.limit("own").unwrap().set_override("ann", FixedWindow::per_day(3), None).await.unwrap();
    for (key, admitted) in [("ann", 3), ("bob", 1)] {
        for number in 0..=admitted {
            assert_eq!(limiter.acquire(key, 1).await.unwrap().is_allowed(), number < admitted, "{key} {number}");
        }
    }
}

async fn a_quota_is_refunded_for_responses_that_do_not_count(fixture: StoreFixture) {
    let by_user = || key::header("x-user");
    let own = quota("own", 1).by(by_user());
    let limits =
        [own.clone().count_if(|response| response.status == StatusCode::NOT_FOUND), quota("team", 1).by(by_user())];
    let app =
        app(RateLimitLayer::builder(limits).store(fixture.store.clone()).deadline(Duration::from_secs(30)).build());
    for _ in 0..3 {
        assert_eq!(ask(&app, get("/", "ann")).await.status, StatusCode::OK);
        fixture.wait_for_remaining(&own, "ann", 1).await;
    }
    assert_eq!(ask(&app, get("/missing", "ann")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&app, get("/", "ann")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

async fn policy_headers_list_the_quotas_with_capacity(fixture: StoreFixture) {
    let limits = [quota("one", 1).by(key::header("x-user")), quota("two", 2).by(key::header("x-user"))];
    let app =
        app(RateLimitLayer::builder(limits).store(fixture.store.clone()).deadline(Duration::from_secs(30)).build());
    let mut policies = Vec::new();
    for _ in 0..3 {
        let answer = ask(&app, get("/", "ann")).await;
        policies.push(answer.headers["ratelimit-policy"].to_str().unwrap().to_owned());
    }
    let (one, two) = ("\"one\";q=1;w=86400", "\"two\";q=2;w=86400");
    assert_eq!(policies, [format!("{one}, {two}"), two.to_owned(), one.to_owned()]);
}

on_both_stores!(
    a_quota_uses_its_overage_before_the_request_is_denied,
    an_override_raises_a_quota_for_its_key_only,
    a_quota_is_refunded_for_responses_that_do_not_count,
    policy_headers_list_the_quotas_with_capacity,
    each_quota_with_capacity_is_charged_and_the_last_one_denies,
    a_single_quota_denies_like_any_limit,
    another_limit_that_denies_keeps_quotas_from_being_charged,
    the_wait_is_that_of_the_quota_with_the_earliest_capacity,
    headers_describe_the_quotas_with_capacity,
);

#[test]
fn a_quota_has_no_penalty() {
    let limit = quota("one", 1).penalty(Penalty::after(2, DAY));
    let error = Limiter::builder([limit]).try_build().map(drop).unwrap_err().to_string();
    assert!(error.starts_with("the limit \"one\" is in quota mode and has a penalty"), "{error}");
}
