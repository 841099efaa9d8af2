//! The subject of the tests: limits in memory, with a manual clock.

use std::sync::Arc;

use support::calls::{Now, Outcomes};
use support::limits::acquire_costs;
use support::model::{Answer, ExpectedOutcome};
use support::rule::Rule;
use support::store_fixture::midnight;
use tower_ratelimit::{Decision, Limit, Limiter, ManualClock, MemoryStore, Receipt, Timestamp};

#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) clock: ManualClock,
    pub(crate) limiter: Limiter,
}

pub(crate) const KEY: &str = "key";

impl Subject {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        Self::with_store(rules, MemoryStore::new().max_keys(1_000))
    }

    pub(crate) fn with_store(rules: &[Rule], store: MemoryStore) -> Self {
        let clock = ManualClock::default();
        let named = |(index, rule): (usize, &Rule)| Limit::new(format!("limit-{index}"), rule.algorithm());
        let store = store.clock(clock.clone());
        Self { clock, limiter: Limiter::builder(rules.iter().enumerate().map(named)).store(store).build() }
    }

    pub(crate) fn set(&self, at: u64) -> &Self {
        self.clock.set(Timestamp::from_micros(at));
        self
    }

    /// Charges `cost` to each limit at the clock's instant.
    pub(crate) fn acquire(&self, cost: u64) -> Decision {
        self.limiter.acquire(KEY, cost).now()
    }

    pub(crate) fn acquire_costs(&self, costs: &[u64]) -> Decision {
        self.acquire_as(KEY, costs)
    }

    pub(crate) fn acquire_as(&self, key: &str, costs: &[u64]) -> Decision {
        acquire_costs(&self.limiter, key, costs).now()
    }

    pub(crate) fn peek(&self, cost: u64) -> Decision {
        self.limiter.peek(KEY, cost).now()
    }

    pub(crate) fn refund(&self, receipt: Receipt) {
        self.limiter.refund(receipt).now();
    }

    /// Returns the remaining tokens of each limit.
    pub(crate) fn levels(&self) -> Vec<ExpectedOutcome> {
        Answer::from(&self.peek(0)).limits
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.peek(0).remaining()[0]
    }
}

/// A store in memory with its clock, which stands at midnight.
pub(crate) struct Memory {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: ManualClock,
}

impl Memory {
    pub(crate) fn new(max_keys: usize) -> Self {
        let clock = midnight();
        Self { store: Arc::new(MemoryStore::new().max_keys(max_keys).clock(clock.clone())), clock }
    }

    pub(crate) fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Limiter {
        Limiter::builder(limits).store(self.store.clone()).build()
    }

    pub(crate) fn keys(&self) -> usize {
        self.store.keys()
    }
}
