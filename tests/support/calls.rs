//! Short forms of calls that succeed, and of what tests compare in decisions.

use tower_ratelimit::key::Key;
use tower_ratelimit::store::StoreFuture;
use tower_ratelimit::{Decision, Limiter};

/// Answers that are ready at once, as those of memory.
pub trait Now<T> {
    fn now(self) -> T;
}

impl<T> Now<T> for StoreFuture<T> {
    #[track_caller]
    fn now(self) -> T {
        self.into_ready().unwrap_or_else(|_| panic!("memory answers at once")).expect("an answer")
    }
}

/// Calls of a limiter whose store answers.
#[allow(async_fn_in_trait, reason = "only limiters implement it")]
pub trait Calls {
    /// Returns whether a request is allowed.
    async fn allows(&self, key: impl Key + Sync, cost: u64) -> bool;

    /// Returns the remaining tokens of each limit.
    async fn left(&self, key: impl Key + Sync) -> Vec<u64>;
}

impl Calls for Limiter {
    async fn allows(&self, key: impl Key + Sync, cost: u64) -> bool {
        self.acquire(key, cost).await.expect("a decision").is_allowed()
    }

    async fn left(&self, key: impl Key + Sync) -> Vec<u64> {
        self.peek(key, 0).await.expect("a decision").remaining()
    }
}

/// Properties of all outcomes of a decision.
pub trait Outcomes {
    /// Returns the remaining tokens of each limit.
    fn remaining(&self) -> Vec<u64>;

    /// Returns whether each limit allows the request.
    fn verdicts(&self) -> Vec<bool>;
}

impl Outcomes for Decision {
    fn remaining(&self) -> Vec<u64> {
        self.outcomes().iter().map(|outcome| outcome.remaining()).collect()
    }

    fn verdicts(&self) -> Vec<bool> {
        self.outcomes().iter().map(|outcome| outcome.verdict().is_allowed()).collect()
    }
}
