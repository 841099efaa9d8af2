//! Stores without overrides.

use std::sync::Arc;
use std::time::Duration;

use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, StoreFuture};
use tower_ratelimit::{
    CircuitBreaker, FixedWindow, Limit, Limiter, LiveLimits, MemoryStore, Store, StoreError, StoreErrorKind,
};

use support::calls::Calls;

/// A store that only implements the required methods.
#[derive(Debug)]
struct Plain(MemoryStore);

impl Store for Plain {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        self.0.decide(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }
}

#[tokio::test]
async fn a_store_without_overrides_returns_an_error_and_still_decides() {
    let limiter = Limiter::builder(Limit::new("daily", FixedWindow::per_day(2)).overridable())
        .store(Plain(MemoryStore::new()))
        .circuit_breaker(CircuitBreaker::new().failures(1))
        .build();
    let overrides = limiter.limit("daily").unwrap();
    let not_supported = |error: &StoreError| {
        assert_eq!(error.kind(), StoreErrorKind::NotSupported);
        assert!(error.to_string().contains("does not support overrides"), "{error}");
    };
    not_supported(&overrides.set_override("42", FixedWindow::per_day(5), None).await.unwrap_err());
    not_supported(&overrides.get_override("42").await.unwrap_err());
    not_supported(&overrides.remove_override("42").await.unwrap_err());
    // This does not count as a failure for the circuit breaker.
    assert!(limiter.allows("42", 2).await && !limiter.allows("42", 1).await);
}

/// Limits that are not overridable ignore the overrides of another limiter.
#[tokio::test]
async fn a_limit_that_is_not_overridable_ignores_overrides() {
    let store = Arc::new(MemoryStore::new());
    let of = |limit| Limiter::builder([limit]).store(store.clone()).build();
    let open = of(Limit::new("daily", FixedWindow::per_day(2)).overridable());
    let plain = of(Limit::new("daily", FixedWindow::per_day(2)));
    open.limit("daily").unwrap().set_override("42", FixedWindow::per_day(5), None).await.unwrap();
    assert!(open.allows("42", 3).await && !plain.allows("42", 1).await && open.allows("42", 2).await);
}

#[tokio::test]
async fn a_call_that_does_not_fit_the_limit_is_not_a_failure_of_the_store() {
    let live = LiveLimits::new([Limit::new("daily", FixedWindow::per_day(2))]);
    let daily = Limiter::live_builder(&live).build().limit("daily").unwrap();
    let is_invalid = |error: StoreError, reason: &str| {
        assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
        assert!(error.to_string().starts_with(reason), "{error}");
        let response = error.response();
        assert_eq!((response.status().as_u16(), response.headers().get("retry-after")), (500, None));
    };
    is_invalid(daily.get_override("42").await.unwrap_err(), "the limit \"daily\" has no overrides");
    is_invalid(daily.remove_override("42").await.unwrap_err(), "the limit \"daily\" has no overrides");
    live.replace([]).unwrap();
    is_invalid(daily.peek("42", 1).await.unwrap_err(), "there is no limit named \"daily\"");
    is_invalid(daily.reset("42").await.unwrap_err(), "there is no limit named \"daily\"");
}
