//! Logs store failures and breaker changes through `tracing`, at most one line a minute of each kind.
//!
//! The kinds are a request that could not be decided, a breaker that opened, and a breaker that closed; the latter two
//! for each node. A line says how many others were `suppressed` since the last of its kind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};
use crate::node::Node;
use crate::observe::BreakerState;

/// How far apart two lines of one kind are.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How long an outage is remembered that is over.
const OUTAGE_RETENTION: Duration = Duration::from_secs(3_600);

/// What was reported of a limiter's store. Clones of the limiter share it.
#[derive(Debug)]
pub(super) struct Reports {
    since: Instant,
    /// When the next failure may be reported, in µs.
    next: AtomicU64,
    /// Failures since the last line that counts them.
    suppressed: AtomicU64,
    outages: Mutex<Vec<Outage>>,
}

/// The breaker of a node that is open, or was a short time ago.
#[derive(Debug)]
struct Outage {
    node: Option<Node>,
    is_open: bool,
    /// Whether a line showed that it fails. If so, another shows its end.
    is_reported: bool,
    /// When the last line of either kind was written.
    last: Instant,
    /// How often it opened since without a line.
    suppressed: u64,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            next: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            outages: Mutex::default(),
        }
    }

    /// Reports a failure, if the last report was long enough ago. That a node was not asked is never the reason of an
    /// outage, and is only counted.
    pub(super) fn failed(&self, error: &StoreError) {
        let now = self.since.elapsed();
        let next = self.next.load(Ordering::Relaxed);
        let after = (now + LOG_INTERVAL).as_micros() as u64;
        let is_due = error.kind() != StoreErrorKind::BreakerOpen
            && now.as_micros() as u64 >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
            // This line shows the outage of a node whose opened breaker was not reported, so its end is reported.
            let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
            let outage = outages.iter_mut().find(|outage| outage.is_open && outage.node.as_ref() == error.node());
            outage.into_iter().for_each(|outage| outage.is_reported = true);
            drop(outages);
            tracing::warn!(error = error as &dyn std::error::Error, suppressed, "the store could not decide a request");
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports that a breaker opened, unless its last line was a short time ago; and that it closed, if a
    /// line showed the outage.
    pub(super) fn changed(&self, node: Option<&Node>, state: BreakerState) {
        let now = Instant::now();
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.retain(|outage| outage.is_open || now < outage.last + OUTAGE_RETENTION);
        let known = outages.iter_mut().find(|outage| outage.node.as_ref() == node);
        let name = node.map(Node::name);
        match (state, known) {
            (BreakerState::Open, None) => {
                let node = node.cloned();
                outages.push(Outage { node, is_open: true, is_reported: true, last: now, suppressed: 0 });
                drop(outages);
                report_open(name, 0);
            }
            (BreakerState::Open, Some(outage)) if !outage.is_open => {
                outage.is_open = true;
                if now < outage.last + LOG_INTERVAL {
                    outage.suppressed += 1;
                    return;
                }
                (outage.is_reported, outage.last) = (true, now);
                let suppressed = std::mem::take(&mut outage.suppressed);
                drop(outages);
                report_open(name, suppressed);
            }
            (BreakerState::Closed, Some(outage)) => {
                outage.is_open = false;
                if std::mem::take(&mut outage.is_reported) {
                    outage.last = now;
                    drop(outages);
                    let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
                    tracing::info!(
                        node = name,
                        suppressed,
                        "the circuit breaker is closed: requests use the store again"
                    );
                }
            }
            // Open again after a trial that failed, or half open.
            _ => {}
        }
    }
}

fn report_open(node: Option<&str>, suppressed: u64) {
    tracing::warn!(
        node,
        suppressed,
        "the store fails: the circuit breaker is open, and requests no longer wait for it"
    );
}
