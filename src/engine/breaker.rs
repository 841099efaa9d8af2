//! The circuit breakers of a store, one for each of its nodes: they say which calls may begin, and learn from their
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::{Node, StoreError};
use crate::recorder::BreakerState;
use crate::time::jittered;

/// Stops calls to a failing store, and tries from time to time whether it works again.
///
/// Each node of a store has its own breaker: each master of a Redis Cluster, otherwise the store as a whole.
///
/// - **Closed**: requests use the store. After a number of consecutive failures or timeouts, the breaker opens.
/// - **Open**: requests don't wait for the store; [`OnStoreError`](crate::OnStoreError) applies at once.
///
/// After a pause, the next request uses the store: it is the trial. If it succeeds, the breaker closes. If it fails,
/// the breaker stays open for another pause, twice as long up to the longest. The actual pause is random between half
/// and all of this length, so that the processes of a fleet don't retry in step.
///
/// Concurrent requests often share a call, so failures of concurrent requests count as one. A store that hangs is
/// therefore skipped after as many deadlines as failures, however many requests wait for it.
///
/// Answers that are ready at once, as those of a memory store, never open a breaker. Neither do errors that concern a
/// single request, such as a Redis key of another type or [contention](crate::StoreErrorKind::Contention) for a key.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{CircuitBreaker, FixedWindow, Limit, RateLimitLayer};
///
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .circuit_breaker(CircuitBreaker::new().failures(10).longest_pause(Duration::from_millis(500)))
///     .build();
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CircuitBreaker {
    /// Zero if the breaker never opens.
    failures: u32,
    longest_pause: Duration,
}

/// The first pause, unless the longest is shorter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl CircuitBreaker {
    /// Creates a breaker that opens after 5 consecutive failures, with pauses of up to a second.
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 5, longest_pause: Duration::from_secs(1) }
    }

    /// Creates a breaker that never opens: every request waits for the store until the deadline.
    #[must_use]
    pub const fn off() -> Self {
        Self { failures: 0, ..Self::new() }
    }

    /// Sets the number of consecutive failures or timeouts after which the breaker opens. Defaults to 5.
    ///
    /// # Panics
    ///
    /// Panics if `failures` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn failures(self, failures: u32) -> Self {
        assert!(failures > 0, "a circuit breaker opens after 0 failures: use at least 1, or turn it off");
        Self { failures, ..self }
    }

    /// Sets the longest pause. Defaults to a second. The first pause is 100 ms, or `pause` if that is shorter.
    ///
    /// # Panics
    ///
    /// Panics if `pause` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn longest_pause(self, pause: Duration) -> Self {
        assert!(!pause.is_zero(), "longest_pause is 0: use at least 1 ns");
        Self { longest_pause: pause, ..self }
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

/// The time for which the breaker of a named node is kept without requests. After that, its keys may belong to another
/// node.
const RETENTION: Duration = Duration::from_secs(60);

/// The longest time until another attempt, a year. An instant would overflow by much longer ones.
const LONGEST: Duration = Duration::from_secs(31_536_000);

/// A logical time: the number of failures counted, and of calls begun while a breaker existed.
type Tick = u64;

/// The breakers of one limiter's store. Clones of the limiter share them.
///
/// A node has a breaker from its first failure until it works again. While all nodes work there is none, and a request
/// only checks [`are_closed`](Self::are_closed).
#[derive(Debug, Default)]
pub(super) struct Breakers {
    settings: CircuitBreaker,
    has_any: AtomicBool,
    /// The latest tick.
    tick: AtomicU64,
    breakers: Mutex<ByNode>,
}

/// The key `None` stands for a store of a single node, or for an unknown node.
type ByNode = BTreeMap<Option<Node>, Breaker>;

#[derive(Debug)]
struct Breaker {
    /// When a request last had a key on the node.
    used: Instant,
    /// Consecutive failures.
    failures: u32,
    /// The tick of the last failure, or of the trial. Calls that began before don't count: concurrent calls often share
    /// a connection, so only the first of their failures does.
    since: Tick,
    /// If the breaker is open, the end of the pause, or the instant from which another call may replace the trial:
    /// callers can keep a future without polling it.
    until: Option<Instant>,
    /// The pause before jitter.
    pause: Duration,
}

/// The nodes of a call's keys, without duplicates.
pub(super) type Nodes = SmallVec<[Option<Node>; 1]>;

/// The breakers that changed, and their new states.
pub(super) type BreakerChanges = SmallVec<[(Option<Node>, BreakerState); 1]>;

/// A call to the store in progress. If it is the trial, dropping it makes the next call the trial, and a panic fails
/// it.
#[derive(Debug)]
#[must_use = "its end is recorded"]
pub(super) struct Call {
    began: Tick,
    /// The breakers, some of which are open with this call as their trial.
    trial: Option<Arc<Breakers>>,
}

impl Call {
    pub(super) fn is_trial(&self) -> bool {
        self.trial.is_some()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(breakers) = &self.trial else { return };
        breakers.update(|all| {
            for breaker in all.values_mut().filter(|breaker| breaker.until.is_some() && breaker.since == self.began) {
                if thread::panicking() {
                    breaker.fail(breakers.next_tick(), breakers.settings);
                } else {
                    breaker.until = Some(Instant::now());
                }
            }
        });
    }
}

impl Breakers {
    pub(super) fn new(settings: CircuitBreaker) -> Arc<Self> {
        Arc::new(Self { settings, ..Self::default() })
    }

    /// Returns whether every node has worked since it last failed.
    #[inline]
    pub(super) fn are_closed(&self) -> bool {
        !self.has_any.load(Ordering::Relaxed)
    }

    /// Begins a call while all breakers are closed.
    pub(super) fn begin(&self) -> Call {
        Call { began: self.tick.load(Ordering::Relaxed), trial: None }
    }

    fn next_tick(&self) -> Tick {
        self.tick.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins a call that concerns `nodes`, or returns an error if the breaker of one of them is open. If the pauses of
    /// open breakers are over, the call is their trial until twice the `deadline`, later than it ends.
    ///
    /// Removes breakers of nodes that have had no requests for a while. Recorders see them close.
    pub(super) fn admit(
        self: &Arc<Self>,
        nodes: &Nodes,
        deadline: Duration,
    ) -> (Result<Call, StoreError>, BreakerChanges) {
        let now = Instant::now();
        self.update(|breakers| {
            breakers.retain(|node, breaker| {
                if nodes.contains(node) {
                    breaker.used = now;
                }
                node.is_none() || now.duration_since(breaker.used) <= RETENTION
            });
            if let Some(rejection) = rejection(breakers, nodes, now) {
                return Err(rejection);
            }
            let mut call = Call { began: self.next_tick(), trial: None };
            for (node, breaker) in breakers {
                if breaker.until.is_some() && nodes.contains(node) {
                    breaker.since = call.began;
                    breaker.until = Some(now + deadline.saturating_mul(2).min(LONGEST));
                    call.trial = Some(self.clone());
                }
            }
            Ok(call)
        })
    }

    /// Returns the error of a call that concerns `nodes`, if a breaker would reject it. Changes nothing.
    pub(super) fn rejection(&self, nodes: &Nodes) -> Option<StoreError> {
        rejection(&self.breakers.lock().unwrap_or_else(PoisonError::into_inner), nodes, Instant::now())
    }

    /// Records that `nodes` worked in a call, or failed. Nothing is known about other nodes.
    pub(super) fn record(&self, call: &Call, nodes: &Nodes, worked: bool) -> BreakerChanges {
        if self.settings.failures == 0 {
            return BreakerChanges::new();
        }
        let record = |breakers: &mut ByNode| {
            if worked {
                // The store knows its nodes again. Failures from before can't be assigned to any of them.
                let knows_nodes = nodes.iter().any(Option::is_some);
                breakers.retain(|node, breaker| {
                    let has_recovered =
                        nodes.contains(node) && (breaker.until.is_none() || call.began >= breaker.since);
                    !has_recovered && (node.is_some() || !knows_nodes)
                });
                return;
            }
            for node in nodes {
                let breaker = breakers.entry(node.clone()).or_insert_with(|| Breaker {
                    used: Instant::now(),
                    failures: 0,
                    since: 0,
                    until: None,
                    pause: Duration::ZERO,
                });
                if call.began >= breaker.since {
                    breaker.fail(self.next_tick(), self.settings);
                }
            }
        };
        self.update(record).1
    }

    /// Returns the result of an update, and which breakers it has opened and closed.
    fn update<T>(&self, update: impl FnOnce(&mut ByNode) -> T) -> (T, BreakerChanges) {
        let open = |breakers: &ByNode| -> BTreeSet<Option<Node>> {
            breakers.iter().filter(|(_, breaker)| breaker.until.is_some()).map(|(node, _)| node.clone()).collect()
        };
        let mut breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = open(&breakers);
        let updated = update(&mut breakers);
        let after = open(&breakers);
        self.has_any.store(!breakers.is_empty(), Ordering::Relaxed);
        let closed = before.difference(&after).map(|node| (node.clone(), BreakerState::Closed));
        let opened = after.difference(&before).map(|node| (node.clone(), BreakerState::Open));
        (updated, closed.chain(opened).collect())
    }
}

/// Returns the error of a call that concerns `nodes`, if a breaker rejects it.
fn rejection(breakers: &ByNode, nodes: &Nodes, now: Instant) -> Option<StoreError> {
    let rejects = |breaker: &Breaker| breaker.until.is_some_and(|until| now < until);
    let node = nodes.iter().find(|node| breakers.get(node).is_some_and(rejects))?;
    Some(StoreError::breaker_open(node.clone()))
}

impl Breaker {
    /// Counts a failure at a tick, which may open the breaker.
    fn fail(&mut self, tick: Tick, settings: CircuitBreaker) {
        (self.failures, self.since) = (self.failures.saturating_add(1), tick);
        if self.failures >= settings.failures {
            self.pause = self.pause.saturating_mul(2).max(FIRST_PAUSE).min(settings.longest_pause);
            self.until = Some(Instant::now() + jittered(self.pause).min(LONGEST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dropped call has no recorder, so the next request reports the change.
    #[tokio::test(start_paused = true)]
    async fn a_removed_breaker_is_reported_as_closed() {
        let [one, two] = ["one", "two"].map(|name| Nodes::from_elem(Some(Node::new(name)), 1));
        let breakers = Breakers::new(CircuitBreaker::new().failures(1));
        let deadline = Duration::from_millis(50);
        for node in [&one, &two] {
            let _ = breakers.record(&breakers.begin(), node, false);
        }
        tokio::time::advance(RETENTION / 2).await;
        let (trial, _) = breakers.admit(&two, deadline);
        assert!(trial.as_ref().is_ok_and(Call::is_trial), "{trial:?}");
        tokio::time::advance(RETENTION / 2 + Duration::from_secs(1)).await;
        drop(trial);
        let (_, changes) = breakers.admit(&two, deadline);
        assert_eq!(changes.to_vec(), [(one[0].clone(), BreakerState::Closed)]);
    }

    /// Unlike that of a named node, which may have lost its keys.
    #[tokio::test(start_paused = true)]
    async fn the_breaker_of_an_unknown_node_is_kept_until_the_store_works() {
        let [unknown, one] = [None, Some(Node::new("one"))].map(|node| Nodes::from_elem(node, 1));
        let breakers = Breakers::new(CircuitBreaker::new().failures(1));
        let _ = breakers.record(&breakers.begin(), &unknown, false);
        tokio::time::advance(RETENTION * 2).await;
        let (call, changes) = breakers.admit(&one, Duration::from_millis(50));
        assert!(changes.is_empty(), "{changes:?}");
        let changes = breakers.record(&call.expect("another breaker"), &one, true);
        assert_eq!(changes.to_vec(), [(None, BreakerState::Closed)]);
    }

    /// At its deadline, its failure is not recorded yet.
    #[tokio::test(start_paused = true)]
    async fn a_trial_is_not_replaced_at_its_deadline() {
        let (node, deadline) = (Nodes::from_elem(None, 1), Duration::from_millis(50));
        let breakers = Breakers::new(CircuitBreaker::new().failures(1));
        let _ = breakers.record(&breakers.begin(), &node, false);
        tokio::time::advance(FIRST_PAUSE).await;
        let _trial = breakers.admit(&node, deadline).0.expect("the pause is over");
        tokio::time::advance(deadline).await;
        assert!(breakers.admit(&node, deadline).0.is_err());
    }

    /// Twice the deadline after a trial that is not polled, another call is the trial.
    #[tokio::test(start_paused = true)]
    async fn only_the_latest_trial_has_a_result() {
        let (node, deadline) = (Nodes::from_elem(None, 1), Duration::from_millis(50));
        let breakers = Breakers::new(CircuitBreaker::new().failures(1));
        let changes = breakers.record(&breakers.begin(), &node, false);
        assert_eq!(changes.to_vec(), [(None, BreakerState::Open)]);
        let [first, second] = [(), ()].map(async |()| {
            tokio::time::advance(deadline * 2).await;
            breakers.admit(&node, deadline).0.expect("the pause is over")
        });
        let (first, second) = (first.await, second.await);
        for worked in [true, false] {
            assert!(breakers.record(&first, &node, worked).is_empty());
        }
        drop(first);
        assert!(breakers.admit(&node, deadline).0.is_err(), "the second is under way");
        assert_eq!(breakers.record(&second, &node, true).to_vec(), [(None, BreakerState::Closed)]);
        assert!(breakers.are_closed());
    }
}
