//! Permits in handlers.

use std::thread;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use futures_util::FutureExt;
use http::{Request, StatusCode};
use tower::{Layer, service_fn};
use tower_ratelimit::{
    Builder, DecidedBy, HttpOptions, Limit, OnMissingKey, Permit, RateLimitLayer, SlidingLog, SlidingWindowCounter,
    TokenBucket,
};

use crate::service::per_day;
use support::answer::ask;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(
    a_handler_charges_a_batch_after_parsing_it,
    a_denied_batch_can_be_refunded,
    a_refund_includes_limits_with_a_cost_of_their_own,
    a_permit_settles_tokens,
    the_last_of_several_settlements_counts,
    concurrent_settlements_settle_once,
    a_successful_login_resets_failures,
    charges_before_a_reset_are_not_refunded,
    a_second_refund_changes_nothing,
    concurrent_refunds_refund_once,
    a_window_that_has_ended_is_not_refunded,
    hundreds_of_charges_at_different_instants_are_refunded,
    a_permit_settles_the_cost_of_a_route,
    each_limit_has_a_permit_of_its_own,
    a_stream_is_settled_at_its_end,
    a_handler_and_its_response_refund_once,
    exempt_requests_have_a_permit,
);

fn hundred() -> Limit {
    per_day("hundred", 100).by(user_key())
}

/// Returns a router whose route `/{n}` calls `handle(permit, n)`.
fn app<F, R>(limits: &Builder<HttpOptions>, handle: impl Fn(Permit, u64) -> F + Clone + Send + Sync + 'static) -> Router
where
    F: Future<Output = R> + Send + 'static,
    R: axum::response::IntoResponse + 'static,
{
    let handler = move |permit: Permit, Path(number): Path<u64>| handle(permit, number);
    Router::new().route("/{number}", get(handler)).layer(limits.clone().permits().build())
}

/// Visits paths as ann, and checks the tokens that a limit has left in the headers and in the store.
async fn check(fixture: &StoreFixture, app: &Router, limit: &Limit, visits: &[(&str, i64)]) {
    for (path, left) in visits {
        let answer = visit(app, path, "ann").await;
        let found = (answer.status, answer.remaining_of(limit.name()), fixture.remaining(limit, "ann").await);
        assert_eq!(found, (StatusCode::OK, *left, *left), "{path}");
    }
}

async fn charge(permit: Permit, more: u64) -> StatusCode {
    let decision = permit.charge(more).await.expect("a decision");
    if decision.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}

async fn a_handler_charges_a_batch_after_parsing_it(fixture: StoreFixture) {
    let app = app(&fixture.builder(hundred()), charge);
    // Each request costs one token and the additional charge. A denied batch has cost one.
    for (path, is_denied, left) in [("/49", false, 50), ("/60", true, 49), ("/48", false, 0)] {
        let answer = visit(&app, path, "ann").await;
        assert_eq!((answer.is_denied(), answer.remaining()), (is_denied, left), "{path}");
        assert_eq!(fixture.remaining(&hundred(), "ann").await, left, "{path}");
    }
    assert!(visit(&app, "/0", "ann").await.is_denied());
    assert_eq!(visit(&app, "/18446744073709551615", "bob").await.remaining(), 99);
}

async fn a_denied_batch_can_be_refunded(fixture: StoreFixture) {
    let app = app(&fixture.builder(hundred()), async |permit, more| {
        let status = charge(permit.clone(), more).await;
        if status != StatusCode::OK {
            permit.refund().await.expect("a refund");
            assert_eq!(permit.decision().outcomes()[0].remaining(), 100);
        }
        status
    });
    let answer = visit(&app, "/100", "ann").await;
    assert_eq!((answer.is_denied(), answer.remaining()), (true, 100));
    assert_eq!(fixture.remaining(&hundred(), "ann").await, 100);
}

fn tokens() -> Limit {
    Limit::new("tokens", TokenBucket::per_day(1_000)).by(user_key())
}

fn requests() -> Limit {
    per_day("requests", 100).by(user_key())
}

async fn a_refund_includes_limits_with_a_cost_of_their_own(fixture: StoreFixture) {
    let app = app(&fixture.builder([requests().cost(5), tokens()]).cost(100), async |permit: Permit, more| {
        assert!(permit.charge(more).await.expect("a decision").is_allowed());
        permit.refund().await.expect("a refund");
    });
    check(&fixture, &app, &requests(), &[("/70", 100)]).await;
    assert_eq!(fixture.remaining(&tokens(), "ann").await, 1_000);
}

async fn a_permit_settles_tokens(fixture: StoreFixture) {
    let limits = fixture.builder([requests().cost(1), tokens()]).cost(100);
    let app = app(&limits, async |permit, actual| {
        let settled = permit.settle(actual).await.expect("a settlement");
        assert!(settled.decision.is_allowed());
        settled.shortfall.to_string()
    });
    let visits = [("/30", "0", 970), ("/470", "0", 500), ("/100", "0", 400), ("/0", "0", 400), ("/950", "550", 0)];
    for (requests_left, (path, shortfall, left)) in (95..100).rev().zip(visits) {
        let answer = visit(&app, path, "ann").await;
        assert_eq!((answer.body.as_str(), answer.remaining_of("requests")), (shortfall, requests_left), "{path}");
        assert_eq!((answer.remaining_of("tokens"), fixture.remaining(&tokens(), "ann").await), (left, left), "{path}");
        assert_eq!(fixture.remaining(&requests(), "ann").await, requests_left, "{path}");
    }
    assert!(visit(&app, "/1", "ann").await.is_denied());
}

async fn the_last_of_several_settlements_counts(fixture: StoreFixture) {
    let app = app(&fixture.builder([tokens()]), async |permit: Permit, actual| {
        for actual in [2 * actual, 0, 5 * actual, actual] {
            permit.settle(actual).await.expect("a settlement");
        }
    });
    check(&fixture, &app, &tokens(), &[("/100", 900), ("/1", 899), ("/0", 899)]).await;
}

async fn concurrent_settlements_settle_once(fixture: StoreFixture) {
    let app = app(&fixture.builder([tokens()]), async |permit: Permit, actual| {
        let many =
            [(); 20].map(|()| permit.clone()).map(|permit| tokio::spawn(async move { permit.settle(actual).await }));
        for one in many {
            assert_eq!(one.await.expect("the work is done").expect("a settlement").shortfall, 0);
        }
    });
    check(&fixture, &app, &tokens(), &[("/20", 980), ("/3", 977), ("/40", 937)]).await;
}

fn failures() -> Limit {
    let failures = Limit::new("failed-logins", SlidingLog::per_day(5)).by(user_key());
    failures.count_if(|response| response.status == StatusCode::UNAUTHORIZED)
}

async fn a_successful_login_resets_failures(fixture: StoreFixture) {
    let limits = fixture.builder([requests(), failures()]);
    let app = app(&limits, async |permit, password| {
        if password != 42 {
            return StatusCode::UNAUTHORIZED;
        }
        let failures = permit.limit("failed-logins").expect("the limit applies");
        failures.reset().await.expect("a reset");
        let left: Vec<_> = failures.decision().outcomes().iter().map(|outcome| outcome.remaining()).collect();
        assert_eq!(left, [5]);
        StatusCode::OK
    });
    for round in 1..=3 {
        for left in (1..5).rev() {
            assert_eq!(visit(&app, "/1", "ann").await.remaining_of("failed-logins"), left);
        }
        check(&fixture, &app, &failures(), &[("/42", 5)]).await;
        assert_eq!(fixture.remaining(&requests(), "ann").await, 100 - 5 * round);
    }
    for _ in 0..5 {
        assert_eq!(visit(&app, "/1", "ann").await.status, 401);
    }
    assert!(visit(&app, "/42", "ann").await.is_denied());
}

/// A refund would return the charges of later requests.
async fn charges_before_a_reset_are_not_refunded(fixture: StoreFixture) {
    let limits = fixture.builder(hundred()).cost(30);
    let other = app(&limits, async |_, _| StatusCode::OK);
    let app = app(&limits, move |permit: Permit, more| {
        let other = other.clone();
        async move {
            assert!(permit.charge(more).await.expect("a decision").is_allowed());
            permit.reset().await.expect("a reset");
            assert!(permit.charge(more).await.expect("a decision").is_allowed());
            permit.clone().reset().await.expect("a reset");
            assert_eq!(visit(&other, "/0", "ann").await.remaining(), 70);
            permit.refund().await.expect("a refund");
        }
    });
    assert_eq!(visit(&app, "/20", "ann").await.status, 200);
    assert_eq!(fixture.remaining(&hundred(), "ann").await, 70);
}

async fn a_second_refund_changes_nothing(fixture: StoreFixture) {
    let app = app(&fixture.builder(hundred()).cost(10), async |permit: Permit, times| {
        for _ in 0..times {
            permit.refund().await.expect("a refund");
            assert!(permit.decision().into_receipt().is_empty());
        }
    });
    check(&fixture, &app, &hundred(), &[("/0", 90), ("/1", 90), ("/2", 90), ("/5", 90), ("/0", 80)]).await;
}

async fn concurrent_refunds_refund_once(fixture: StoreFixture) {
    let app = app(&fixture.builder(hundred()).cost(10), async |permit: Permit, times| {
        assert!(permit.charge(5).await.expect("a decision").is_allowed());
        let many: Vec<_> = (0..times)
            .map(|_| permit.clone())
            .map(|permit| tokio::spawn(async move { permit.refund().await }))
            .collect();
        for one in many {
            one.await.expect("the work is done").expect("a refund");
        }
    });
    check(&fixture, &app, &hundred(), &[("/0", 85), ("/20", 85)]).await;
}

async fn a_window_that_has_ended_is_not_refunded(fixture: StoreFixture) {
    let counter = Limit::new("counter", SlidingWindowCounter::per_day(100)).by(user_key());
    let (clock, limits) = (fixture.clock.clone(), fixture.builder([hundred(), counter.clone()]).cost(60));
    let app = app(&limits, move |permit: Permit, days| {
        let clock = clock.clone();
        async move {
            clock.advance(std::time::Duration::from_secs(86_400 * days));
            if days > 0 {
                permit.refund().await.expect("a refund");
            }
        }
    });
    for (path, user, left) in [("/1", "ann", (100, 100)), ("/0", "ann", (40, 40)), ("/2", "bob", (100, 100))] {
        visit(&app, path, user).await;
        let found = (fixture.remaining(&hundred(), user).await, fixture.remaining(&counter, user).await);
        assert_eq!(found, left, "{path}");
    }
}

/// More than one call of a store takes.
async fn hundreds_of_charges_at_different_instants_are_refunded(fixture: StoreFixture) {
    let log = Limit::new("log", SlidingLog::per_day(1_000)).by(user_key());
    let (clock, limits) = (fixture.clock.clone(), fixture.builder(log.clone()));
    let app = app(&limits, move |permit: Permit, charges| {
        let clock = clock.clone();
        async move {
            for _ in 0..charges {
                clock.advance(std::time::Duration::from_millis(1));
                let _ = permit.charge(1).await.expect("a decision");
            }
            permit.refund().await.expect("a refund");
        }
    });
    check(&fixture, &app, &log, &[("/300", 1_000)]).await;
}

async fn a_permit_settles_the_cost_of_a_route(fixture: StoreFixture) {
    let limits = fixture.builder(hundred()).permits().build();
    let settle = async |permit: Permit, Path(actual): Path<u64>| {
        assert_eq!(permit.settle(actual).await.expect("a settlement").shortfall, 0);
    };
    let app = Router::new().route("/{actual}", get(settle).route_layer(limits.cost(10))).layer(limits);
    // The router charges 1, and the route 9 more.
    check(&fixture, &app, &hundred(), &[("/10", 90), ("/0", 90), ("/3", 87), ("/20", 67)]).await;
}

async fn each_limit_has_a_permit_of_its_own(fixture: StoreFixture) {
    let app = app(&fixture.builder([requests().cost(1), tokens()]), async |permit: Permit, more| {
        let names: Vec<_> = permit.limits().iter().map(|limit| limit.name().to_owned()).collect();
        assert_eq!(names, ["requests", "tokens"]);
        assert!(permit.limit("nobody's").is_none());
        let (requests, tokens) = (permit.limit("requests").expect("one"), permit.limit("tokens").expect("another"));
        assert!(requests.limit("tokens").is_none());
        assert_eq!(permit.decision().outcomes().len(), 2);
        assert!(requests.charge(9).await.expect("a decision").is_allowed());
        assert_eq!(tokens.settle(more).await.expect("a settlement").shortfall, 0);
        assert_eq!(tokens.decision().outcomes()[0].remaining(), 1_000 - more);
        tokens.refund().await.expect("a refund");
    });
    let answer = visit(&app, "/500", "ann").await;
    assert_eq!((answer.remaining_of("requests"), answer.remaining_of("tokens")), (90, 1_000));
}

async fn a_stream_is_settled_at_its_end(fixture: StoreFixture) {
    let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
    let app = app(&fixture.builder([tokens()]).cost(100), move |permit: Permit, actual| {
        let done = done.clone();
        async move {
            tokio::spawn(async move {
                // The number of bytes sent so far.
                for sent in [actual / 2, actual] {
                    permit.settle(sent).await.expect("a settlement");
                }
                done.send(permit.decision().outcomes()[0].remaining()).expect("it is waited for");
            });
        }
    });
    for (path, left) in [("/40", 960), ("/300", 660)] {
        visit(&app, path, "ann").await;
        is_done.recv().await.expect("it is over");
        assert_eq!(fixture.remaining(&tokens(), "ann").await, left);
    }
}

/// The response settles last.
async fn a_handler_and_its_response_refund_once(fixture: StoreFixture) {
    let limit = hundred().count_if(|response| response.status != StatusCode::OK);
    let app = app(&fixture.builder(limit).cost(10), async |permit: Permit, actual| {
        permit.settle(actual).await.expect("a settlement");
    });
    for path in ["/0", "/4", "/60"] {
        assert_eq!(visit(&app, path, "ann").await.status, 200);
        fixture.wait_for_remaining(&hundred(), "ann", 100).await;
    }
}

async fn exempt_requests_have_a_permit(fixture: StoreFixture) {
    let limit = per_day("ten", 10).by(tower_ratelimit::key::header("x-plan"));
    let limits = fixture.builder([limit.on_missing_key(OnMissingKey::Skip)]);
    let app = app(&limits, async |permit: Permit, more| {
        assert!(permit.limit("ten").is_none());
        assert_eq!(permit.decision().decided_by(), DecidedBy::Unlimited);
        assert!(permit.charge(more).await.expect("a decision").is_allowed());
        assert_eq!(permit.settle(more).await.expect("a settlement").shortfall, 0);
        permit.refund().await.expect("a refund");
        permit.reset().await.expect("a reset");
    });
    let answer = visit(&app, "/1000", "ann").await;
    assert_eq!((answer.status, answer.header("ratelimit")), (StatusCode::OK, None));
}

#[tokio::test]
async fn a_permit_without_a_limiter_is_an_error() {
    let app = Router::new().route("/", get(async |_: Permit| "hello"));
    let with_limits = app.clone().layer(RateLimitLayer::new([per_day("all", 9)]));
    for app in [app, with_limits] {
        let answer = visit(&app, "/", "ann").await;
        assert_eq!(answer.status, 500);
        assert!(answer.body.contains("put a `RateLimitLayer` with `.permits()` around the route"), "{}", answer.body);
    }
}

#[tokio::test]
async fn charges_by_several_threads_are_all_counted() {
    let fixture = StoreFixture::in_memory();
    let many = per_day("many", 100_000).by(user_key());
    let app = app(&fixture.builder([many.clone()]), async |permit: Permit, times| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..times {
                        let charged = permit.charge(1).now_or_never().expect("memory answers at once");
                        assert!(charged.expect("a decision").is_allowed());
                    }
                });
            }
        });
    });
    check(&fixture, &app, &many, &[("/5000", 79_999)]).await;
}

/// Without Axum, the permit is an extension of the request.
#[tokio::test]
async fn any_service_finds_its_permit() {
    let fixture = StoreFixture::in_memory();
    let service = service_fn(async |request: Request<Body>| {
        let permit = Permit::of(request.extensions()).expect("a permit");
        assert!(permit.charge(9).await.expect("a decision").is_allowed());
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
    });
    let answer =
        ask(&fixture.builder(hundred()).permits().build().layer(service), support::store_fixture::get("/", "ann"))
            .await;
    assert_eq!(answer.remaining(), 90);
}

/// Of two layers, the innermost one with permits provides the permit.
#[tokio::test]
async fn the_inner_of_two_layers_provides_the_permit() {
    let fixture = StoreFixture::in_memory();
    let (outer, inner) = (fixture.builder(hundred()).permits().build(), fixture.builder([tokens().count_if(|_| true)]));
    for (inner, left) in [(inner.clone().build(), (89, 999)), (inner.permits().build(), (88, 988))] {
        let handler = get(async |permit: Permit| charge(permit, 10).await);
        let app = Router::new().route("/", handler).layer(inner).layer(outer.clone());
        assert_eq!(visit(&app, "/", "ann").await.status, 200);
        assert_eq!((fixture.remaining(&hundred(), "ann").await, fixture.remaining(&tokens(), "ann").await), left);
    }
}
