//! Logs store failures and breaker changes through `tracing`, at most one line a minute of each kind.
//!
//! The kinds are: the store failed to decide a request, a breaker opened, a breaker closed. The latter two are counted
//! for each node. The field `suppressed` counts the failures since the last line of the same kind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::fallback::LocalStore;
use crate::error::{Node, StoreError, StoreErrorKind};
use crate::recorder::BreakerState;
use crate::store::Store;

/// The minimum time between two lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The time for which an outage is remembered after its end.
const OUTAGE_RETENTION: Duration = Duration::from_secs(3_600);

/// The outages of a limiter's store that were logged. Clones of the limiter share it.
#[derive(Debug)]
pub(super) struct OutageLog {
    since: Instant,
    /// When the next failure may be logged, in µs after `since`.
    next: AtomicU64,
    /// Failures since the last line that counts them.
    suppressed: AtomicU64,
    outages: Mutex<Vec<Outage>>,
}

/// A node whose breaker is open, or was a short time ago.
#[derive(Debug)]
struct Outage {
    node: Option<Node>,
    is_open: bool,
    /// Whether a line showed that the node fails. If so, another shows the end.
    is_logged: bool,
    /// When the last line about the node was written.
    last: Instant,
    /// The number of times that the breaker opened since then without a line in the log.
    suppressed: u64,
}

/// The failing store and the policies in effect, for the fields `store` and `on_store_error` of every line.
pub(super) struct LogContext<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) policies: &'a LocalStore,
}

impl LogContext<'_> {
    fn warn_open(&self, node: Option<&str>, suppressed: u64) {
        tracing::warn!(
            store = self.store.name(),
            node,
            on_store_error = self.policies.summary(),
            suppressed,
            "the circuit breaker opened: requests no longer wait for the store"
        );
    }
}

impl OutageLog {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            next: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            outages: Mutex::default(),
        }
    }

    /// Logs a failure, unless another was logged a short time ago. An open breaker is never the cause of an outage, so
    /// its rejections are only counted.
    pub(super) fn failed(&self, error: &StoreError, context: &LogContext<'_>) {
        let now = self.since.elapsed();
        let next = self.next.load(Ordering::Relaxed);
        let after = (now + LOG_INTERVAL).as_micros() as u64;
        let is_due = error.kind() != StoreErrorKind::BreakerOpen
            && now.as_micros() as u64 >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
            // This line shows that the node fails, even if the opening of its breaker is not logged, so its end is.
            let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
            let failing =
                outages.iter_mut().filter(|outage| error.node().is_none() || outage.node.as_ref() == error.node());
            failing.for_each(|outage| outage.is_logged = true);
            // Logged before the lock is released, so that it does not follow the line of an end that it precedes.
            tracing::warn!(
                %error,
                store = context.store.name(),
                on_store_error = context.policies.summary(),
                suppressed,
                "the store failed to decide a request"
            );
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs that a breaker opened, unless its last line was written a short time ago. Logs that it closed if a line
    /// showed the outage.
    pub(super) fn breaker_changed(&self, node: Option<&Node>, state: BreakerState, context: &LogContext<'_>) {
        let now = Instant::now();
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.retain(|outage| outage.is_open || now < outage.last + OUTAGE_RETENTION);
        let known = outages.iter_mut().find(|outage| outage.node.as_ref() == node);
        let name = node.map(Node::name);
        match (state, known) {
            (BreakerState::Open, None) => {
                let node = node.cloned();
                outages.push(Outage { node, is_open: true, is_logged: true, last: now, suppressed: 0 });
                drop(outages);
                context.warn_open(name, 0);
            }
            (BreakerState::Open, Some(outage)) if !outage.is_open => {
                outage.is_open = true;
                if now < outage.last + LOG_INTERVAL {
                    outage.suppressed += 1;
                    return;
                }
                (outage.is_logged, outage.last) = (true, now);
                let suppressed = std::mem::take(&mut outage.suppressed);
                drop(outages);
                context.warn_open(name, suppressed);
            }
            (BreakerState::Closed, Some(outage)) => {
                outage.is_open = false;
                if std::mem::take(&mut outage.is_logged) {
                    outage.last = now;
                    // The lines of the next outage are due together, so that none shows it without the others.
                    self.next.fetch_max((self.since.elapsed() + LOG_INTERVAL).as_micros() as u64, Ordering::Relaxed);
                    let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
                    tracing::info!(
                        store = context.store.name(),
                        node = name,
                        suppressed,
                        "the circuit breaker closed: requests use the store again"
                    );
                }
            }
            _ => {}
        }
    }
}
