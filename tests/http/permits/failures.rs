//! Permits during an outage of the store.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::StatusCode;
use tokio::sync::Mutex;
use tower_ratelimit::{
    Builder, CircuitBreaker, DecidedBy, HttpOptions, Limit, OnStoreError, Permit, RateLimitLayer, Share,
};

use crate::service::per_day;
use support::faulty_store::{FaultyStore, Mode, Operation};
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(what_the_store_was_paid_comes_back_to_it);

fn hundred() -> Limit {
    per_day("hundred", 100).by(user_key())
}

/// Returns a builder that decides locally during an outage.
fn local(fixture: &StoreFixture) -> Builder<HttpOptions> {
    fixture.builder(hundred()).on_store_error(OnStoreError::DecideLocally(Share::whole())).cost(10)
}

fn app(limits: Builder<HttpOptions>) -> Router {
    let handler = async |permit: Permit, Path(actual): Path<u64>| {
        let by = permit.decision().decided_by();
        let Ok(settled) = permit.settle(actual).await else { return Err(StatusCode::BAD_GATEWAY) };
        Ok(format!("{by:?} {}", settled.shortfall))
    };
    Router::new().route("/{actual}", get(handler)).layer(limits.permits().build())
}

async fn what_the_store_was_paid_comes_back_to_it(fixture: StoreFixture) {
    let app = app(local(&fixture));
    let by = if fixture.server.is_some() { DecidedBy::Store } else { DecidedBy::Memory };
    assert_eq!(visit(&app, "/4", "ann").await.body, format!("{by:?} 0"));
    assert_eq!(fixture.remaining(&hundred(), "ann").await, 96);
}

/// Local charges are refunded locally. Requests that nothing decides are not charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_decisions_are_refunded_locally() {
    let mut fixture = StoreFixture::on_redis().await;
    let unlimited = app(fixture.builder(hundred()).on_store_error(OnStoreError::Allow).cost(10));
    let app = app(local(&fixture));
    let server = fixture.server.as_mut().expect("a server");
    server.stop();
    for (path, left) in [("/4", 96), ("/0", 96), ("/90", 6)] {
        let answer = visit(&app, path, "ann").await;
        assert_eq!((answer.body.as_str(), answer.remaining()), ("Local 0", left), "{path}");
    }
    assert!(visit(&app, "/1", "ann").await.is_denied());
    for path in ["/4", "/1000"] {
        assert_eq!(visit(&unlimited, path, "ann").await.body, "Unlimited 0");
    }
    server.start_again();
    fixture.wait_for_remaining(&hundred(), "ann", 100).await;
}

/// Even after the store has recovered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_charges_are_settled_locally() {
    let mut fixture = StoreFixture::on_redis().await;
    let limits = local(&fixture);
    fixture.server.as_mut().expect("a server").stop();
    let fixture = Arc::new(Mutex::new(fixture));
    let kept = fixture.clone();
    let handler = async move |permit: Permit| {
        let mut fixture = fixture.lock().await;
        fixture.server.as_mut().expect("a server").start_again();
        fixture.wait_for_remaining(&hundred(), "ann", 100).await;
        let decision = permit.settle(30).await.expect("a settlement").decision;
        assert_eq!((decision.decided_by(), decision.outcomes()[0].remaining()), (DecidedBy::Local, 70));
    };
    let app = Router::new().route("/", get(handler)).layer(limits.permits().build());
    assert_eq!(visit(&app, "/", "ann").await.remaining(), 70);
    assert_eq!(kept.lock().await.remaining(&hundred(), "ann").await, 100);
}

/// Visits a handler that stops the store and then uses its permit.
async fn without_store<F: Future<Output = ()> + Send + 'static>(
    policy: OnStoreError,
    handle: impl Fn(Permit) -> F + Clone + Send + Sync + 'static,
) {
    let fixture = StoreFixture::on_redis().await;
    let limits = fixture.builder(hundred()).on_store_error(policy).cost(10).permits().build();
    let server = Arc::new(std::sync::Mutex::new(fixture.server));
    let handler = async move |permit: Permit| {
        let stop = move || server.lock().expect("one").as_mut().expect("a server").stop();
        tokio::task::spawn_blocking(stop).await.expect("the process stops");
        handle(permit).await;
    };
    let answer = visit(&Router::new().route("/", get(handler)).layer(limits), "/", "ann").await;
    assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 90));
}

/// Requests that are allowed without a decision are not reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecided_charges_are_not_reported() {
    let charge = |permit: Permit| async move {
        let decision = permit.charge(1_000).await.expect("a decision");
        assert_eq!((decision.is_allowed(), decision.decided_by()), (true, DecidedBy::Unlimited));
    };
    without_store(OnStoreError::Allow, charge).await;
}

/// The store fails between the charge and the handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_settlements_are_errors_and_refunds_are_not_repeated() {
    let settle = |permit: Permit| async move {
        assert!(permit.settle(4).await.is_err());
        assert!(permit.refund().await.is_err());
        // The refunds may have succeeded, so they are not repeated.
        assert!(permit.refund().await.is_ok());
    };
    without_store(OnStoreError::Reject, settle).await;
}

#[tokio::test]
async fn a_failed_reset_keeps_the_charges() {
    let store = FaultyStore::new(Mode::Works);
    let limits = RateLimitLayer::builder(hundred()).store(store.clone()).circuit_breaker(CircuitBreaker::off());
    let handler = async move |permit: Permit| {
        store.set_for(Operation::Reset, Mode::Fails);
        assert!(permit.reset().await.is_err());
        permit.refund().await.expect("a refund");
        permit.decision().outcomes()[0].remaining().to_string()
    };
    let app = Router::new().route("/", get(handler)).layer(limits.cost(10).permits().build());
    assert_eq!(visit(&app, "/", "ann").await.body, "100");
}

/// Nothing was charged, so the decision says that nothing was counted.
#[tokio::test]
async fn a_settlement_that_the_policy_allows_returns_its_own_decision() {
    let store = FaultyStore::new(Mode::Works);
    let limits = RateLimitLayer::builder(hundred()).store(store.clone()).on_store_error(OnStoreError::Allow);
    let handler = async move |permit: Permit| {
        store.set(Mode::Fails);
        let settled = permit.settle(30).await.expect("a settlement");
        format!("{:?} {}", settled.decision.decided_by(), settled.shortfall)
    };
    let app = Router::new().route("/", get(handler)).layer(limits.cost(10).permits().build());
    assert_eq!(visit(&app, "/", "ann").await.body, "Unlimited 0");
}
