//! Debts: settlements beyond the limit, and what later requests wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use tower_ratelimit::key::PeerAddr;
use tower_ratelimit::{
    Algorithm, Builder, CalendarWindow, DecisionRecord, Event, FixedWindow, HeaderStyle, HttpOptions, LeakyBucket,
    LeakyBucketQueue, Limit, LimitHandle, LiveLimits, Outcome, Permit, RateLimitLayer, Recorder, RequestHead,
    SlidingLog, SlidingWindow, SlidingWindowCounter, Stats, TokenBucket, rules, when,
};

use support::event_log::EventLog;
use support::patient::Patient;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(
    the_waits_of_the_guide_are_exact,
    a_debt_is_bounded_and_the_rest_is_a_shortfall,
    a_refund_first_removes_debt,
    responses_settle_into_debt,
    an_override_has_a_debt_of_its_own_size,
    a_debt_outlives_a_replacement_of_the_limit,
    a_rules_file_sets_the_debt,
    a_debt_comes_after_the_overage,
    a_debt_comes_after_elastic_overage,
    only_settlements_use_debt,
    quotas_and_shadow_limits_have_debts,
    a_queue_as_another_size_has_no_debt,
    a_client_that_underestimates_tenfold_keeps_its_rate,
);

const SECOND: Duration = Duration::from_secs(1);
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// The algorithms with 10 tokens, at 1 a second or in windows of 10 s: after a settlement at 25, the wait for 1 token, and
/// the time until the key is unused.
fn waits() -> [(Algorithm, Duration, Duration); 8] {
    let day = Duration::from_secs(86_400);
    let paid = (Duration::from_secs(16), Duration::from_secs(25));
    let of = |algorithm: Algorithm, (wait, reset)| (algorithm, wait, reset);
    [
        of(TokenBucket::new(10, 1, SECOND).into(), paid),
        of(TokenBucket::new(10, 1, SECOND).at_intervals().into(), paid),
        of(LeakyBucket::new(10, 1, SECOND).into(), paid),
        of(SlidingWindowCounter::new(10, TEN_SECONDS).into(), (Duration::from_millis(16_400), 2 * TEN_SECONDS)),
        of(FixedWindow::new(10, TEN_SECONDS).into(), (TEN_SECONDS, TEN_SECONDS)),
        of(SlidingWindow::new(10, TEN_SECONDS).into(), (TEN_SECONDS, TEN_SECONDS)),
        of(SlidingLog::new(10, TEN_SECONDS).into(), (TEN_SECONDS, TEN_SECONDS)),
        of(CalendarWindow::daily(10).into(), (day, day)),
    ]
}

/// Returns a limit of a user.
fn limit(name: &str, algorithm: impl Into<Algorithm>) -> Limit {
    Limit::new(name, algorithm).by(user_key())
}

fn bucket() -> Limit {
    limit("tokens", TokenBucket::new(10, 1, SECOND))
}

/// Returns a router whose route `/{a},{b}` settles a tokens, then b tokens, and responds with the last shortfall. Each
/// request is charged `cost` at first.
fn app(limits: Builder<HttpOptions>, cost: u64) -> (Router, RateLimitLayer) {
    let settle = async |permit: Permit, Path(actual): Path<String>| {
        let mut shortfall = 0;
        for actual in actual.split(',') {
            let actual = actual.parse().expect("a number");
            let names: Vec<_> = permit.limits().iter().map(|limit| limit.name().to_owned()).collect();
            for limit in names.iter().filter_map(|name| permit.limit(name)) {
                shortfall = limit.settle(actual).await.expect("a settlement").shortfall;
            }
        }
        shortfall.to_string()
    };
    let limits = limits.cost(cost).permits().build();
    (Router::new().route("/{actual}", get(settle)).layer(limits.clone()), limits)
}

/// Returns the outcome that a request of ann with a cost would have now.
async fn peek(limit: &LimitHandle, cost: u64) -> Outcome {
    limit.peek("ann", cost).await.expect("a decision").outcomes()[0].clone()
}

/// Returns the debt of ann.
async fn debt(limits: &RateLimitLayer, name: &str) -> u64 {
    peek(&limits.limit(name).expect("a limit"), 1).await.debt()
}

async fn the_waits_of_the_guide_are_exact(fixture: StoreFixture) {
    for (index, (algorithm, wait, reset)) in waits().into_iter().enumerate() {
        let name = format!("tokens {index}");
        let (app, limits) = app(fixture.builder([limit(&name, algorithm).debt(200)]), 1);
        let start = fixture.now();
        let answer = visit(&app, "/25", "ann").await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str(), answer.remaining()), (200, "0", 0), "{algorithm}");
        let handle = limits.limit(&name).expect("a limit");
        let outcome = peek(&handle, 1).await;
        assert_eq!((outcome.debt(), outcome.remaining(), outcome.uses_overage()), (15, 0, false), "{algorithm}");
        let waits = (outcome.verdict().retry_after(), outcome.more_after(), outcome.reset_after());
        assert_eq!(waits, (Some(wait), Some(wait), reset), "{algorithm}");
        let denied = visit(&app, "/1", "ann").await;
        assert!(denied.is_denied(), "{algorithm}");
        let seconds = wait.as_micros().div_ceil(1_000_000);
        assert_eq!(denied.header("retry-after"), Some(seconds.to_string().as_str()), "{algorithm}");
        assert_eq!(denied.remaining(), 0, "{algorithm}");
        fixture.set(start + wait.as_micros() as u64 - 1);
        assert!(!peek(&handle, 1).await.verdict().is_allowed(), "{algorithm}");
        fixture.set(start + wait.as_micros() as u64);
        assert!(peek(&handle, 1).await.verdict().is_allowed(), "{algorithm}");
        fixture.set(start);
    }
}

async fn a_debt_is_bounded_and_the_rest_is_a_shortfall(fixture: StoreFixture) {
    for (index, (algorithm, ..)) in waits().into_iter().enumerate() {
        let name = format!("tokens {index}");
        let shortfall = Arc::new(Mutex::new(Vec::new()));
        let noted = shortfall.clone();
        let builder = fixture.builder([limit(&name, algorithm).debt(200)]).observe(move |event| {
            if let Event::Shortfall { tokens, .. } = event {
                noted.lock().expect("no thread has panicked").push(*tokens);
            }
        });
        let (app, limits) = app(builder, 5);
        assert_eq!(visit(&app, "/45", "ann").await.body, "15", "{algorithm}");
        assert_eq!(*shortfall.lock().expect("no thread has panicked"), [15], "{algorithm}");
        assert_eq!(debt(&limits, &name).await, 20, "{algorithm}");
        assert!(visit(&app, "/1", "ann").await.is_denied(), "{algorithm}");
        assert_eq!(debt(&limits, &name).await, 20, "{algorithm}");
    }
}

/// Another request has taken 5 tokens before.
async fn a_refund_first_removes_debt(fixture: StoreFixture) {
    for (index, (algorithm, ..)) in waits().into_iter().enumerate() {
        for (actual, debt_after, left) in
            [("25,20", 15, 0), ("25,7", 2, 0), ("25,5", 0, 0), ("25,3", 0, 2), ("25,0", 0, 5)]
        {
            let name = format!("tokens {index} {actual}");
            let (app, limits) = app(fixture.builder([limit(&name, algorithm).debt(200)]), 5);
            for path in ["/5", &format!("/{actual}")] {
                assert_eq!(visit(&app, path, "ann").await.body, "0", "{algorithm}");
            }
            let outcome = peek(&limits.limit(&name).expect("a limit"), 1).await;
            assert_eq!((outcome.debt(), outcome.remaining()), (debt_after, left), "{algorithm}, {actual}");
        }
    }
}

async fn responses_settle_into_debt(fixture: StoreFixture) {
    let settled = bucket().cost(5).debt(100).settle_by(|response| response.header("x-used")?.parse().ok());
    let limits = fixture.builder([settled]).build();
    let complete = |Path(used): Path<String>| async move { [("x-used", used)] };
    let app = Router::new().route("/{used}", get(complete)).layer(limits.clone());
    assert_eq!(visit(&app, "/18", "ann").await.status, 200);
    for _ in 0..2_000 {
        if debt(&limits, "tokens").await == 8 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the debt is {}", debt(&limits, "tokens").await);
}

async fn an_override_has_a_debt_of_its_own_size(fixture: StoreFixture) {
    let (app, limits) = app(fixture.builder([bucket().debt(100).overridable()]), 2);
    let handle = limits.limit("tokens").expect("a limit");
    handle.set_override("ann", TokenBucket::new(4, 1, SECOND), None).await.expect("the work is done");
    assert_eq!(visit(&app, "/25", "ann").await.body, "17", "4 tokens and a debt of 4");
    let outcome = peek(&handle, 1).await;
    assert_eq!((outcome.debt(), outcome.verdict().retry_after()), (4, Some(5 * SECOND)));
    // A larger override contains the debt, and a smaller one adds to it.
    for (size, debt, left) in [(12, 0, 4), (2, 6, 0)] {
        handle.set_override("ann", TokenBucket::new(size, 1, SECOND), None).await.expect("the work is done");
        let outcome = peek(&handle, 1).await;
        assert_eq!((outcome.debt(), outcome.remaining()), (debt, left), "{size}");
    }
    let largest = TokenBucket::new(3_000_000_000, 3_000_000_000, SECOND);
    let error = handle.set_override("ann", largest, None).await.unwrap_err().to_string();
    assert!(error.contains("3000000000 and 100 % of that are more than the 4,294,967,295 tokens"), "{error}");
}

async fn a_debt_outlives_a_replacement_of_the_limit(fixture: StoreFixture) {
    let live = LiveLimits::new([bucket().debt(200)]);
    let (app, limits) = app(RateLimitLayer::live_builder(&live).store(fixture.store.clone()).patient(), 5);
    assert_eq!(visit(&app, "/25", "ann").await.body, "0");
    live.replace([bucket()]).expect("valid limits");
    let outcome = peek(&limits.limit("tokens").expect("a limit"), 1).await;
    assert_eq!((outcome.debt(), outcome.verdict().retry_after()), (15, Some(16 * SECOND)));
    fixture.advance(16 * SECOND);
    assert_eq!(visit(&app, "/25", "bob").await.body, "15", "the debt is gone for new requests");
}

async fn a_rules_file_sets_the_debt(fixture: StoreFixture) {
    let yaml = "
domain: shop
descriptors:
- key: header.x-user
  rate_limit: { name: tokens, algorithm: token_bucket, unit: minute, requests_per_unit: 60, burst: 10, debt: 100% }
";
    let limits = rules::from_yaml(yaml, &rules::Extractors::new()).expect("a valid file");
    let (app, limits) = app(fixture.builder(limits), 5);
    assert_eq!(visit(&app, "/25", "ann").await.body, "5");
    assert_eq!(debt(&limits, "tokens").await, 10);
}

/// Records the kinds of the outcomes of all limits.
#[derive(Clone, Debug, Default)]
struct Kinds(Arc<Mutex<Vec<&'static str>>>);

impl Kinds {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().expect("no thread has panicked"))
    }
}

impl Recorder for Kinds {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let kinds = decision.limits().map(|limit| limit.outcome.kind().as_str());
        self.0.lock().expect("no thread has panicked").extend(kinds);
    }
}

/// Only a settlement within the overage uses overage.
async fn a_debt_comes_after_the_overage(fixture: StoreFixture) {
    let (kinds, events, stats) = (Kinds::default(), EventLog::default(), Stats::new());
    let builder = fixture.builder([bucket().soft(20).debt(100)]).headers([HeaderStyle::IETF, HeaderStyle::Overage]);
    let builder = builder.recorder(kinds.clone()).recorder(stats.clone()).observe(events.observer());
    let (app, limits) = app(builder, 5);
    for (user, path, settled, overage, shortfall) in [
        ("bob", "/10", "allowed", None, "0"),
        ("eve", "/12", "overage", Some("\"tokens\""), "0"),
        ("ann", "/22", "debt", None, "0"),
        ("joe", "/23", "debt", None, "1"),
    ] {
        let answer = visit(&app, path, user).await;
        assert_eq!((answer.header("ratelimit-overage"), answer.body.as_str()), (overage, shortfall), "{path}");
        let kinds = kinds.take();
        assert_eq!([kinds.first(), kinds.last()], [Some(&"allowed"), Some(&settled)], "{path}");
        let expected: &[&str] = if overage.is_some() { &["over tokens 0"] } else { &[] };
        assert_eq!(events.take(), expected, "{path}");
    }
    assert_eq!(debt(&limits, "tokens").await, 10);
    // A denial of the settlement at first, then what fits.
    assert_eq!((stats.limits()[0].allowed, stats.limits()[0].denied), (8, 1));
    let mut request = http::Request::get("/").header("x-user", "ann").body(()).expect("a valid request");
    request.extensions_mut().insert(PeerAddr(([192, 0, 2, 7], 50_000).into()));
    let explanation = limits.explain(&RequestHead::of(&request)).await.to_string();
    let expected = "denied, retry after 15 seconds, 0 of 10 left, debt 10, cost 5, reset after 22 seconds";
    assert!(explanation.contains(expected), "{explanation}");
}

async fn a_debt_comes_after_elastic_overage(fixture: StoreFixture) {
    let is_spare = Arc::new(AtomicBool::new(true));
    let signal = is_spare.clone();
    let elastic = bucket().elastic(50, move || signal.load(Ordering::Relaxed)).debt(100);
    let (app, limits) = app(fixture.builder([elastic]), 5);
    assert_eq!(visit(&app, "/26", "ann").await.body, "1", "15 tokens and a debt of 10");
    assert_eq!(debt(&limits, "tokens").await, 10);
    is_spare.store(false, Ordering::Relaxed);
    assert_eq!(debt(&limits, "tokens").await, 15, "the overage is gone");
    assert_eq!(visit(&app, "/26", "bob").await.body, "6", "10 tokens and a debt of 10");
}

async fn only_settlements_use_debt(fixture: StoreFixture) {
    let charge = async |permit: Permit| {
        assert!(!permit.charge(6).await.expect("a decision").is_allowed());
        assert!(permit.charge(5).await.expect("a decision").is_allowed());
    };
    let limits = fixture.builder([bucket().debt(100)]).cost(5).permits().build();
    let app = Router::new()
        .route("/", get(charge))
        .route("/route", get("hello").route_layer(limits.cost(10)))
        .route("/dear", get("hello").route_layer(limits.cost_by(|_| 11)))
        .layer(limits.clone());
    assert_eq!(visit(&app, "/", "ann").await.status, 200);
    assert_eq!(visit(&app, "/route", "bob").await.status, 200);
    assert!(visit(&app, "/dear", "eve").await.is_denied());
}

/// A request that its own quota does not allow is not charged to it.
async fn quotas_and_shadow_limits_have_debts(fixture: StoreFixture) {
    let other = |name, tokens| limit(name, TokenBucket::new(tokens, 1, SECOND)).debt(100);
    let limits = [other("own", 10).quota_mode(), other("team", 20).quota_mode(), other("shadow", 10).shadow()];
    let (app, limits) = app(fixture.builder(limits), 5);
    assert_eq!(visit(&app, "/18", "ann").await.body, "0");
    let debts = async || [debt(&limits, "own").await, debt(&limits, "team").await, debt(&limits, "shadow").await];
    assert_eq!(debts().await, [8, 0, 8]);
    // The team's quota has 2 tokens left.
    assert!(visit(&app, "/5", "ann").await.is_denied());
    fixture.advance(3 * SECOND);
    assert_eq!(visit(&app, "/25", "ann").await.body, "0");
    assert_eq!(debts().await, [5, 20, 5], "only the team was charged");
}

/// The others in a queue would wait for a debt.
async fn a_queue_as_another_size_has_no_debt(fixture: StoreFixture) {
    let queue = LeakyBucketQueue::new(9, 1, Duration::from_millis(1));
    let tokens = bucket().debt(100).size_when(when::header("x-user", "ann"), queue);
    let (app, _) = app(fixture.builder([tokens]), 1);
    assert_eq!(visit(&app, "/25", "ann").await.body, "15");
    assert_eq!(visit(&app, "/25", "bob").await.body, "5");
}

/// Of the 6,500 tokens, 6,000 have come back in ten minutes, 50 are the bucket, and 450 are the debt.
async fn a_client_that_underestimates_tenfold_keeps_its_rate(fixture: StoreFixture) {
    // Without debt, the client gets ten times as much.
    for (percent, most) in [(Some(900), 6_600), (None, 66_000)] {
        let bucket = limit(&format!("tokens {percent:?}"), TokenBucket::per_second(10).burst(50));
        let bucket = if let Some(percent) = percent { bucket.debt(percent) } else { bucket };
        let limits = fixture.builder([bucket]).cost(5).permits().build();
        let used = Arc::new(Mutex::new(0));
        let total = used.clone();
        let handler = move |permit: Permit| async move {
            *total.lock().expect("no thread has panicked") += 50;
            permit.settle(50).await.expect("a settlement").shortfall.to_string()
        };
        let app = Router::new().route("/", get(handler)).layer(limits);
        let end = fixture.now() + 600_000_000;
        while fixture.now() < end {
            // As many at once as possible.
            let requests = (0..12).map(|_| visit(&app, "/", "ann"));
            futures_util::future::join_all(requests).await;
            fixture.advance(SECOND / 2);
        }
        let used = *used.lock().expect("no thread has panicked");
        assert!(used <= most, "{percent:?}: {used} tokens");
        assert!(used > most * 4 / 5, "{percent:?}: {used} tokens");
    }
}

#[test]
fn impossible_debts_are_rejected() {
    let error = |limit: Limit| RateLimitLayer::builder([limit]).try_build().unwrap_err().to_string();
    for (limit, expected) in [
        (bucket().debt(0), "the limit \"tokens\" has a debt of 0 %: use at least 1, or leave it out"),
        (
            limit("queue", LeakyBucketQueue::new(9, 1, SECOND)).debt(1),
            "the limit \"queue\" is a queue, which can't have a debt: use a token bucket, or leave the debt out",
        ),
        (
            limit("large", FixedWindow::per_day(2_000_000_000)).soft(50).debt(100),
            "the limit \"large\" of 2000000000 and 150 % of that are more than the 4,294,967,295 tokens that a limit \
             can have, or take more than 142 years to drain: lower one",
        ),
    ] {
        assert_eq!(error(limit), expected);
    }
}
