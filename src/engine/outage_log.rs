//! Logs store failures and breaker changes through `tracing`, at most one line a minute of each kind for each store,
//! however many limiters use it.
//!
//! The kinds are: a call to the store failed, a breaker opened, a breaker closed. The latter two are counted
//! for each node. The field `suppressed` counts what was not logged since the last line.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::breaker::Breakers;
use crate::error::{Node, StoreError, StoreErrorKind};
use crate::recorder::BreakerState;
use crate::store::Store;
use crate::time::Cooldown;

/// The minimum time between two lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The number of nodes from which those that work are forgotten.
const MAX_NODES: usize = 100;

/// The outages of a store that were logged. The limiters that use the store share it.
#[derive(Debug, Default)]
pub(super) struct OutageLog(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    failures: Cooldown,
    /// Failures since the last line that counts them.
    suppressed: u64,
    /// By node.
    outages: BTreeMap<Option<Node>, Outage>,
}

/// A node whose breaker is open, or was a short time ago.
#[derive(Debug, Default)]
struct Outage {
    /// The breakers that are open: each limiter has its own.
    open: Vec<Weak<Breakers>>,
    /// Whether a line showed that the node fails. If so, another shows the end.
    is_logged: bool,
    openings: Cooldown,
    /// The number of times that the breaker opened since the last line about the node.
    suppressed: u64,
}

impl OutageLog {
    /// Returns the log of the store with this [identity](Store::identity). An unknown store has one for each limiter.
    pub(super) fn of_store(identity: u32) -> Arc<Self> {
        static LOGS: Mutex<BTreeMap<u32, Weak<OutageLog>>> = Mutex::new(BTreeMap::new());
        let mut logs = LOGS.lock().unwrap_or_else(PoisonError::into_inner);
        let log = logs.get(&identity).filter(|_| identity > 0).and_then(Weak::upgrade).unwrap_or_default();
        logs.retain(|_, log| log.strong_count() > 0);
        logs.insert(identity, Arc::downgrade(&log));
        log
    }

    /// Locks the lines. A line is written under the lock, so lines are in the order of the events.
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a failure, unless another was logged a short time ago. An open breaker is never the cause of an outage, so
    /// its rejections are only counted.
    ///
    /// `limiter` returns the first limits of the limiter, and its policies.
    pub(super) fn failed(&self, error: &StoreError, store: &dyn Store, limiter: impl FnOnce() -> [String; 2]) {
        let Lines { failures, suppressed, outages } = &mut *self.lock();
        if error.kind() == StoreErrorKind::BreakerOpen || !failures.try_start(LOG_INTERVAL) {
            *suppressed += 1;
            return;
        }
        // This line shows that the node fails, even if the opening of its breaker is not logged, so its end is.
        for (node, outage) in outages {
            outage.is_logged |= error.node().is_none() || node.as_ref() == error.node();
        }
        let [limits, on_store_error] = limiter();
        tracing::warn!(
            %error,
            store = store.name(),
            limits,
            on_store_error,
            suppressed = take(suppressed),
            "a call to the store failed"
        );
    }

    /// Logs that a breaker opened, unless its last line was written a short time ago. Logs that the last one closed if a
    /// line showed the outage.
    pub(super) fn breaker_changed(
        &self,
        breakers: &Arc<Breakers>,
        node: Option<&Node>,
        state: BreakerState,
        store: &dyn Store,
        limiter: impl FnOnce() -> [String; 2],
    ) {
        let Lines { failures, suppressed, outages } = &mut *self.lock();
        let key = node.cloned();
        if outages.len() >= MAX_NODES && !outages.contains_key(&key) {
            outages.retain(|_, outage| !outage.open.is_empty());
        }
        let outage = outages.entry(key).or_default();
        let own = Arc::downgrade(breakers);
        outage.open.retain(|open| open.strong_count() > 0 && !open.ptr_eq(&own));
        if state == BreakerState::Open {
            outage.open.push(own);
        }
        let (store, node, [limits, on_store_error]) = (store.name(), node.map(Node::name), limiter());
        if state == BreakerState::Closed {
            if outage.open.is_empty() && take(&mut outage.is_logged) {
                // The lines of the next outage are due together, so that none shows it without the others.
                outage.openings.restart(LOG_INTERVAL);
                failures.restart(LOG_INTERVAL);
                tracing::info!(
                    store,
                    node,
                    limits,
                    suppressed = take(suppressed),
                    "the circuit breaker closed: requests use the store again"
                );
            }
        } else if outage.openings.try_start(LOG_INTERVAL) {
            outage.is_logged = true;
            tracing::warn!(
                store,
                node,
                limits,
                on_store_error,
                suppressed = take(&mut outage.suppressed),
                "the circuit breaker opened: requests no longer wait for the store"
            );
        } else {
            outage.suppressed += 1;
        }
    }
}
