//! Recorders of decisions, rejections and events, for metrics, traces and logs; and what they receive.

#[cfg(feature = "metrics")]
mod metrics;
mod stats;
#[cfg(feature = "tracing")]
mod trace;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::RandomState;

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsRecorder;
pub use self::stats::{LimitStats, Stats, TopKey};
#[cfg(feature = "tracing")]
pub use self::trace::TraceRecorder;
use crate::decision::{Decision, Outcome, OutcomeKind};
use crate::error::{Node, StoreError};
use crate::key::KeyError;
use crate::key::head::RequestHead;
use crate::select::ListAction;
use crate::store::Store;

/// Receives every decision and every event of a limiter. Add one with
/// [`Builder::recorder`](crate::Builder::recorder).
///
/// The methods are called inline, by the task that handles the request, so keep them fast. The calls themselves do not
/// allocate.
///
/// `MetricsRecorder` (feature `metrics`), `TraceRecorder` (feature `tracing`) and [`Stats`] are
/// recorders. Write your own for anything else:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_ratelimit::{DecisionRecord, FixedWindow, Limit, OutcomeKind, RateLimitLayer, Recorder};
///
/// /// Counts the tokens that requests were denied.
/// #[derive(Default)]
/// struct DeniedTokens(AtomicU64);
///
/// impl Recorder for DeniedTokens {
///     fn decision(&self, decision: &DecisionRecord<'_>) {
///         for limit in decision.limits().filter(|limit| limit.outcome.kind() == OutcomeKind::Denied) {
///             self.0.fetch_add(limit.outcome.cost(), Ordering::Relaxed);
///         }
///     }
/// }
///
/// let denied = Arc::new(DeniedTokens::default());
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .recorder(denied.clone())
///     .build();
/// # let _ = limits;
/// ```
pub trait Recorder: Send + Sync + 'static {
    /// Receives the names of a limiter's limits and its store when it is built, so that counters can exist before they
    /// are first incremented. For [`LiveLimits`](crate::LiveLimits), there is no store.
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        let _ = (names, store);
    }

    /// Receives each decision that charges a request if it allows it: those of a layer, of
    /// [`Limiter::acquire`](crate::Limiter::acquire) and similar methods, and of a [`Permit`](crate::Permit). Peeks are
    /// not recorded.
    ///
    /// A request for a [route with a cost of its own](crate::RateLimitLayer::cost) is decided twice if it passes an
    /// outer layer of the limiter first: once at that layer's cost, and once at the difference. A settlement that
    /// charges more is recorded, too. It is decided several times if there is too little capacity.
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let _ = decision;
    }

    /// Receives each request that a layer rejects, with the [reason](Rejection::reason). If a limit denied it,
    /// the [`decision`](Self::decision) was recorded before.
    fn rejection(&self, rejection: &Rejection<'_>) {
        let _ = rejection;
    }

    /// Receives each event.
    fn event(&self, event: &Event<'_>) {
        let _ = event;
    }
}

impl<R: Recorder + ?Sized> Recorder for Arc<R> {
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        (**self).prepare(names, store);
    }

    fn decision(&self, decision: &DecisionRecord<'_>) {
        (**self).decision(decision);
    }

    fn rejection(&self, rejection: &Rejection<'_>) {
        (**self).rejection(rejection);
    }

    fn event(&self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// The recorders of a limiter, which its clones share.
pub(crate) type Recorders = Vec<Arc<dyn Recorder>>;

/// A closure that is called with each event.
pub(crate) struct Observer<F>(pub(crate) F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Recorder for Observer<F> {
    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

/// A decision about a request, for a [`Recorder`].
#[derive(Clone, Copy, Debug)]
pub struct DecisionRecord<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// The time that the decision took, including the wait for the store.
    pub duration: Duration,
    /// The names of the limits, by position.
    pub(crate) names: &'a [Arc<str>],
    pub(crate) near_percent: u32,
}

impl<'a> DecisionRecord<'a> {
    /// Returns the limits that applied to the request, with their outcomes.
    ///
    /// Empty if the fallback policy [allows](crate::OnStoreError::Allow) requests without counting them.
    pub fn limits(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        LimitRecord::of_decision(self.decision, self.names, self.near_percent)
    }
}

/// The record of one limit in a decision, for a [`Recorder`].
#[derive(Clone, Copy, Debug)]
pub struct LimitRecord<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The outcome: its verdict, the cost of the request, and the fingerprint of its key. The verdict allows the request
    /// if the limit has capacity, even if another limit denies it.
    pub outcome: &'a Outcome,
    /// The detail of the request in metrics, as [`Limit::metric_detail`](crate::Limit::metric_detail) computed it.
    /// Clients may choose it, so bound the number and the length of the details that you keep.
    pub detail: Option<&'a str>,
    is_charged: bool,
    near_percent: u32,
}

impl<'a> LimitRecord<'a> {
    /// Returns the records of the limits of a decision.
    fn of_decision(decision: &'a Decision, names: &'a [Arc<str>], near_percent: u32) -> impl Iterator<Item = Self> {
        let is_charged = decision.is_charged();
        decision.outcomes().iter().filter_map(move |outcome| {
            let limit = outcome.limit();
            let detail = decision.charges().detail(limit);
            Some(Self { name: names.get(limit)?, outcome, detail, is_charged, near_percent })
        })
    }

    /// Returns the tokens that the request was charged: its cost, or 0 if it was not charged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        if self.is_charged && self.outcome.is_allowed() { self.outcome.cost() } else { 0 }
    }

    /// Returns whether the request was allowed, and its key has now used the share of the limit that
    /// [`Builder::near_limit`](crate::Builder::near_limit) sets.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        let capacity = self.outcome.algorithm().capacity();
        let used = capacity.saturating_sub(self.outcome.remaining());
        self.is_charged && self.outcome.is_allowed() && used * 100 >= capacity * u64::from(self.near_percent)
    }
}

/// The reason why a request is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denies the request.
    Limited {
        /// The shortest wait after which the request would be allowed if no other request came. `None` if no wait can
        /// help.
        retry_after: Option<Duration>,
    },
    /// The request lacks the key of a limit.
    MissingKey(KeyError),
    /// The request matches a list of requests that are [always rejected](crate::Builder::always_reject).
    Listed(ListAction),
    /// The store failed, and the policy is to reject.
    StoreFailed,
}

/// A request that a layer rejects, for a [`Recorder`], and for the closure that builds the response:
/// see [`on_reject`](crate::Builder::on_reject).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// The reason for the rejection.
    pub reason: Reason,
    /// The head of the request. If a handler rejects it through a [`Permit`](crate::Permit), the head is empty, unless
    /// the response depends on it: for gRPC, and with [`on_reject`](crate::Builder::on_reject).
    pub head: RequestHead<'a>,
    /// The decision, if a limit denied the request.
    pub(crate) decision: Option<&'a Decision>,
    /// The names of the limits of the limiter, in order.
    pub(crate) names: &'a [Arc<str>],
    /// The wait that the client is told.
    pub(crate) wait: Option<Duration>,
}

impl<'a> Rejection<'a> {
    /// Returns the limits that denied the request. Empty if it was rejected for another [reason](Self::reason).
    pub fn denied_by(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        let Self { decision, names, .. } = *self;
        // A limit that was not charged is not near its limit.
        let records = move |decision| LimitRecord::of_decision(decision, names, 100);
        decision.into_iter().flat_map(records).filter(|limit| limit.outcome.kind() == OutcomeKind::Denied)
    }
}

/// An event that a limiter reports to its [recorders](crate::Recorder) and to the closures that
/// [observe](crate::Builder::observe) it. More events may be added, so end a `match` with `_ => {}`.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use tower_ratelimit::{Event, FixedWindow, Limit, RateLimitLayer};
///
/// let failures = Arc::new(AtomicUsize::new(0));
/// let counted = failures.clone();
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))]).observe(move |event| {
///     match event {
///         Event::StoreFailed { .. } => {
///             counted.fetch_add(1, Ordering::Relaxed);
///         }
///         _ => {}
///     }
/// }).build();
/// # let _ = limits;
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call to the store failed, or was not made: for a decision, a refund, a reset or an override.
    #[non_exhaustive]
    StoreFailed {
        /// The error. [`kind`](StoreError::kind) classifies it.
        error: &'a StoreError,
    },
    /// A request that the store could not decide was handled by the policy, [`OnStoreError`](crate::OnStoreError).
    #[non_exhaustive]
    FellBack {
        /// The way in which the request was handled.
        to: Fallback,
    },
    /// A request was allowed by overage: see [`Limit::soft`](crate::Limit::soft).
    #[non_exhaustive]
    OverageUsed {
        /// The limit's name.
        limit: &'a str,
        /// The limit's outcome.
        outcome: &'a Outcome,
    },
    /// A limit in shadow mode would have denied a request: see [`Limit::shadow`](crate::Limit::shadow).
    #[non_exhaustive]
    ShadowDenied {
        /// The limit's name.
        limit: &'a str,
        /// The limit's outcome.
        outcome: &'a Outcome,
    },
    /// A lockout of a key began: see [`Limit::penalty`](crate::Limit::penalty). If several processes share a store, the
    /// one that decided the last denial reports it.
    #[non_exhaustive]
    PenaltyBegan {
        /// The limit's name.
        limit: &'a str,
        /// The number of consecutive lockouts, from 1.
        level: u32,
        /// The length of the lockout.
        span: Duration,
    },
    /// A request matched a list: see [`always_reject`](crate::Builder::always_reject).
    #[non_exhaustive]
    ListMatched {
        /// The action for the request.
        action: ListAction,
    },
    /// The [circuit breaker](crate::CircuitBreaker) of a store or of one of its nodes changed its state.
    #[non_exhaustive]
    BreakerChanged {
        /// The new state. The breaker of a node closes if no request has concerned the node for a minute, for example
        /// because it has left the store.
        state: BreakerState,
        /// The node, for a store [with several](crate::Store::node), such as a master of a Redis Cluster. `None` means
        /// the whole store.
        node: Option<&'a Node>,
    },
    /// The actual cost of a request exceeded the capacity of a limit: see
    /// [`Limit::settle_by`](crate::Limit::settle_by).
    #[non_exhaustive]
    Shortfall {
        /// The limit's name.
        limit: &'a str,
        /// The tokens that could not be charged.
        tokens: u64,
    },
    /// [`LiveLimits`](crate::LiveLimits) were replaced. Reported to [their recorders](crate::LiveLimits::recorder).
    #[non_exhaustive]
    LimitsReplaced {
        /// The number of limits in force now.
        limits: usize,
    },
    /// A document that defines [`LiveLimits`](crate::LiveLimits) can't be read or is invalid, so the previous limits
    /// stay in force. Reported once, until the error changes.
    #[non_exhaustive]
    LimitsRejected {
        /// The error.
        error: &'a (dyn std::error::Error + 'static),
    },
}

/// The handling of a request that the store could not decide.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Fallback {
    /// The request was rejected.
    Rejected,
    /// The request was allowed, uncounted.
    Allowed,
    /// This process decided by its share of the limits.
    #[non_exhaustive]
    DecidedLocally {
        /// Whether the request was allowed.
        allowed: bool,
    },
}

/// The state of a [circuit breaker](crate::CircuitBreaker).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum BreakerState {
    /// The store is called for all requests.
    Closed,
    /// The store is called for one request at a time after each pause. If it answers, the breaker closes.
    Open,
}

/// The label of the entry that labels share if they do not fit.
const OTHER: &str = "other";

/// The maximum length of a label in bytes. Clients may choose labels, but no limit has a longer name.
const MAX_LABEL: usize = 128;

/// A map from the values of a label to entries, such as counters. Entries are never removed: exporters keep their
/// series. So readers take no lock, and a new entry copies nothing: it is a leaf of a hash tree. Labels beyond the
/// first `MAX` share an entry, and so do those that are too long.
struct PerLabel<T, const MAX: usize = { usize::MAX }> {
    root: Slot<T>,
    /// The number of labels with entries of their own.
    count: AtomicUsize,
    other: OnceLock<Box<T>>,
}

/// `None` if there was no room for the first label with this place.
type Slot<T> = OnceLock<Option<Box<LabelNode<T>>>>;

struct LabelNode<T> {
    label: Box<str>,
    entry: T,
    /// The nodes below, by the next digit of their labels' hashes.
    children: [Slot<T>; BASE],
}

/// The base of a hash's digits. 8,000 labels have a depth of about 6.
const BASE: usize = 8;

/// Clients choose at most a bounded number of labels, so a fast hash is sufficient.
const HASHER: RandomState = RandomState::with_seeds(1, 2, 3, 4);

impl<T, const MAX: usize> Default for PerLabel<T, MAX> {
    fn default() -> Self {
        Self { root: OnceLock::new(), count: AtomicUsize::new(0), other: OnceLock::new() }
    }
}

impl<T, const MAX: usize> PerLabel<T, MAX> {
    /// Returns the entry of a label. `create` makes the entry of a new label.
    fn get(&self, label: &str, create: impl Fn(&str) -> T) -> &T {
        let add = || {
            let next = |count| (count < MAX).then_some(count + 1);
            self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
            Some(Box::new(LabelNode { label: label.into(), entry: create(label), children: Default::default() }))
        };
        let (mut slot, mut hash) = (&self.root, HASHER.hash_one(label) as usize);
        while label.len() <= MAX_LABEL
            && let Some(node) = slot.get_or_init(add)
        {
            if *node.label == *label {
                return &node.entry;
            }
            (slot, hash) = (&node.children[hash % BASE], hash / BASE);
        }
        self.other.get_or_init(|| Box::new(create(OTHER)))
    }

    /// Returns the entries with their labels, ordered by label, without the shared one.
    fn entries(&self) -> Vec<(&str, &T)> {
        let mut entries = Vec::new();
        let mut slots = vec![&self.root];
        while let Some(slot) = slots.pop() {
            if let Some(Some(node)) = slot.get() {
                entries.push((&*node.label, &node.entry));
                slots.extend(&node.children);
            }
        }
        entries.sort_unstable_by_key(|(label, _)| *label);
        entries
    }
}

impl<T, const MAX: usize> fmt::Debug for PerLabel<T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerLabel").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_one_entry() {
        let lengths: PerLabel<usize> = PerLabel::default();
        let mut labels: Vec<String> = (0..10_000).map(|number: u32| number.to_string()).collect();
        for _ in 0..2 {
            let len = |label: &String| *lengths.get(label, str::len);
            assert!(labels.iter().all(|label| len(label) == label.len()));
        }
        labels.sort_unstable();
        assert!(lengths.entries().into_iter().map(|(label, _)| label).eq(&labels));
    }

    #[test]
    fn labels_that_do_not_fit_share_an_entry() {
        let labels: PerLabel<String, 2> = PerLabel::default();
        let entry = |label: &str| labels.get(label, str::to_owned).to_string();
        let long = "x".repeat(MAX_LABEL + 1);
        assert_eq!([&long, "a", "b", "c", "a", "d"].map(entry), ["other", "a", "b", "other", "a", "other"]);
    }
}
