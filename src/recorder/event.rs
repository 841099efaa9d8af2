//! Events of a limiter.

use std::time::Duration;

use crate::decision::Outcome;
use crate::error::{Node, StoreError};
use crate::select::ListAction;

/// An event that a limiter reports to its [recorders](crate::Recorder) and to the closures that
/// [observe](crate::Builder::observe) it. More events and fields may be added, so end a `match` with `_ => {}`, and a
/// pattern with `..`.
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
    /// one that decided the last denial reports it. The decision that began it is
    /// [recorded](super::Recorder::decision), with the fingerprint of the key.
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
    /// The actual cost of a request exceeded the capacity of a limit and its [debt](crate::Limit::debt): see
    /// [`Limit::settle_by`](crate::Limit::settle_by) and [`Limit::settle_at_end`](crate::Limit::settle_at_end).
    #[non_exhaustive]
    Shortfall {
        /// The limit's name.
        limit: &'a str,
        /// The tokens that could not be charged.
        tokens: u64,
    },
    /// A request took a slot of a [concurrency limit](crate::Concurrency).
    #[non_exhaustive]
    SlotTaken {
        /// The limit's name.
        limit: &'a str,
    },
    /// A request returned its slot.
    #[non_exhaustive]
    SlotReleased {
        /// The limit's name.
        limit: &'a str,
        /// The time for which it held the slot.
        held: Duration,
    },
    /// Slots may have expired although their requests are in flight, because this process could not renew them in time.
    /// They were taken again, whatever the limit is: others may have taken their places.
    #[non_exhaustive]
    SlotsExpired {
        /// The limit's name.
        limit: &'a str,
        /// The number of slots.
        slots: u64,
    },
    /// A block of tokens was [leased](crate::Limit::leased) from the store.
    #[non_exhaustive]
    LeaseBegan {
        /// The limit's name.
        limit: &'a str,
        /// The tokens of the block.
        tokens: u64,
    },
    /// The lease of a block has ended.
    #[non_exhaustive]
    LeaseEnded {
        /// The limit's name.
        limit: &'a str,
        /// The tokens of the block.
        tokens: u64,
        /// The tokens of it that no request has spent.
        unspent: u64,
        /// Whether these were returned to the store. If not, because it failed, they count until they have expired.
        returned: bool,
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
    /// A call of a client waited for its turn in a `client::PaceLayer`.
    #[non_exhaustive]
    CallDelayed {
        /// The wait.
        wait: Duration,
    },
    /// An upstream rejected a call of a client, which a `client::RetryPolicy` repeats.
    #[non_exhaustive]
    CallRetried {
        /// The wait before it.
        wait: Duration,
    },
    /// A `client::RetryPolicy` did not repeat a call because too many calls to the same upstream were repeated.
    RetryBudgetExhausted,
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
