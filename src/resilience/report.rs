//! What operators are told of a store that fails, through `tracing`: that it does, why, and that it
//! works again, but not once for each request: the first failure, then one a minute.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::observe::BreakerState;

/// How far apart two reports of failures are.
const APART: Duration = Duration::from_secs(60);

/// What was reported of a limiter's store. Clones of the limiter share it.
#[derive(Debug)]
pub(super) struct Reports {
    since: Instant,
    /// When the next failure may be told, in µs.
    next: AtomicU64,
    /// Failures that were not told since.
    suppressed: AtomicU64,
    /// It was told that the breaker is open.
    is_open: AtomicBool,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            next: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
        }
    }

    /// One failure, told if the last one that was is long enough ago.
    pub(super) fn failed(&self, error: &StoreError) {
        let now = self.since.elapsed();
        let next = self.next.load(Ordering::Relaxed);
        let after = (now + APART).as_micros() as u64;
        let is_due = now.as_micros() as u64 >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
            tracing::warn!(error = error as &dyn std::error::Error, suppressed, "the store could not decide a request");
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The breaker is in another state.
    pub(super) fn changed(&self, state: BreakerState) {
        match state {
            BreakerState::Open if !self.is_open.swap(true, Ordering::Relaxed) => {
                tracing::warn!("the store fails: the circuit breaker is open, and requests no longer wait for it");
            }
            BreakerState::Closed => {
                self.is_open.store(false, Ordering::Relaxed);
                // The next outage has a reason of its own.
                self.next.store(0, Ordering::Relaxed);
                let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
                tracing::info!(suppressed, "the store works again: the circuit breaker is closed");
            }
            BreakerState::Open | BreakerState::HalfOpen => {}
        }
    }
}
