//! Penalties: keys that are denied too often are locked out. The same tests run on every store.
#![allow(clippy::unwrap_used)]

mod bounded;
mod denials;
mod exact;
mod fallback;
mod http;
mod in_flight;
mod random;
mod redis;

use std::time::Duration;

use support::calls::Calls;
use support::event_log::EventLog;
use support::store_fixture::StoreFixture;
use support::time::{DAY, MICRO};
use tower_ratelimit::{Decision, FixedWindow, Limit, Limiter, Penalty};

/// One key of a limit whose only token is used, so that all its requests are denied until the end of the day.
struct ExhaustedKey<'a> {
    fixture: &'a StoreFixture,
    limiter: Limiter,
    events: EventLog,
}

impl<'a> ExhaustedKey<'a> {
    async fn new(fixture: &'a StoreFixture, penalty: Penalty) -> Self {
        let limit = Limit::new("one", FixedWindow::new(1, DAY)).penalty(penalty);
        let events = EventLog::default();
        let limiter = fixture.limiter_builder(limit).observe(events.observer()).build();
        assert!(limiter.allows("key", 1).await);
        Self { fixture, limiter, events }
    }

    async fn ask(&self) -> Decision {
        self.limiter.acquire("key", 1).await.unwrap()
    }

    /// Returns whether the key is locked out, by a peek.
    async fn is_locked_out(&self) -> bool {
        self.limiter.peek("key", 0).await.unwrap().outcomes()[0].is_locked_out()
    }

    /// Checks a denial without a lockout.
    async fn strike(&self) {
        let decision = self.ask().await;
        assert!(!decision.is_allowed() && !decision.is_locked_out());
    }

    /// Checks a denial that begins a lockout of this length.
    async fn begin(&self, span: Duration) {
        let decision = self.ask().await;
        assert!(!decision.is_allowed() && decision.is_locked_out() && self.is_locked_out().await);
        self.fixture.advance(span - MICRO);
        assert!(self.is_locked_out().await, "not for {span:?}");
        self.fixture.advance(MICRO);
        assert!(!self.is_locked_out().await, "for longer than {span:?}");
    }
}
