//! What a limiter tells of itself, for metrics and logs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Outcome;
use crate::error::StoreError;
use crate::list::ListAction;
use crate::node::Node;

/// What a limiter tells its observer. More will come: end a `match` with `_ => {}`.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use tower_ratelimit::{Event, FixedWindow, Limit, RateLimitLayer};
///
/// let failures = Arc::new(AtomicUsize::new(0));
/// let counted = failures.clone();
/// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]).observe(move |event| {
///     match event {
///         Event::StoreFailed { .. } => {
///             counted.fetch_add(1, Ordering::Relaxed);
///         }
///         _ => {}
///     }
/// });
/// # let _ = limits;
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The store could not do what it was asked for a request, or was not asked. Whatever is asked for
    /// one request, this comes once. When the breaker has the store looked at in the background, that is
    /// for no request, and a failure is not told.
    #[non_exhaustive]
    StoreFailed {
        /// Why, and of which [kind](StoreError::kind).
        error: &'a StoreError,
    },
    /// What became of a request that the store could not decide.
    #[non_exhaustive]
    FellBack {
        /// By [`OnStoreError`](crate::OnStoreError).
        to: Fallback,
    },
    /// A request was allowed that uses overage: see [`Limit::soft`](crate::Limit::soft).
    #[non_exhaustive]
    OverageUsed {
        /// The limit's name.
        limit: &'a str,
        /// What it says of the request.
        outcome: &'a Outcome,
    },
    /// A request would have been denied by a limit that is not enforced: see
    /// [`Limit::shadow`](crate::Limit::shadow).
    #[non_exhaustive]
    ShadowDenied {
        /// The limit's name.
        limit: &'a str,
        /// What it says of the request.
        outcome: &'a Outcome,
    },
    /// A key was denied too often, and is refused for a while: see [`Limit::penalty`](crate::Limit::penalty).
    /// Where processes share a store, the one tells it that has decided the last of these denials.
    #[non_exhaustive]
    PenaltyBegan {
        /// The limit's name.
        limit: &'a str,
        /// How many times in a row, from 1: what has doubled the span.
        level: u32,
        /// For how long.
        span: Duration,
    },
    /// A request was refused by a list: see
    /// [`always_reject`](crate::RateLimitLayer::always_reject).
    #[non_exhaustive]
    ListMatched {
        /// How it was answered, if it was.
        refusal: ListAction,
    },
    /// The [circuit breaker](crate::CircuitBreaker) of a store, or of one of its nodes, is in another state.
    #[non_exhaustive]
    BreakerChanged {
        /// Its state from now on. The breaker of a node that no request has concerned for a minute closes, as when the node has left the store.
        state: BreakerState,
        /// The node, where a store [has several](crate::Store::node): a master of a Redis Cluster. `None` is the whole
        /// store.
        node: Option<&'a Node>,
    },
    /// A request has cost more than a limit had room for, once it was known: see
    /// [`Limit::settle_by`](crate::Limit::settle_by).
    #[non_exhaustive]
    Shortfall {
        /// The limit's name.
        limit: &'a str,
        /// What there was no room for.
        tokens: u64,
    },
    /// [`LiveLimits`](crate::LiveLimits) were replaced: told to those who
    /// [observe](crate::LiveLimits::observe) them.
    #[non_exhaustive]
    RulesReplaced {
        /// How many limits there are now.
        limits: usize,
    },
    /// A document that [`LiveLimits`](crate::LiveLimits) follow can't be read or is wrong: the old limits stay.
    /// Once, until it says something else.
    #[non_exhaustive]
    RulesRejected {
        /// Why.
        error: &'a (dyn std::error::Error + 'static),
    },
}

/// What became of a request that the store could not decide.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Fallback {
    /// It was refused.
    Rejected,
    /// It went on, uncounted.
    Allowed,
    /// This process has decided by itself.
    #[non_exhaustive]
    DecidedLocally {
        /// What it has decided.
        allowed: bool,
    },
}

/// Whether a [circuit breaker](crate::CircuitBreaker) lets requests reach the store.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum BreakerState {
    /// All of them.
    Closed,
    /// None, but for a look at it now and then.
    Open,
    /// One at a time, whose success closes it.
    HalfOpen,
}

/// Whom events are told, if anyone.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Tell>>);

type Tell = dyn Fn(&Event<'_>) + Send + Sync;

impl Observer {
    pub(crate) fn new(tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(tell) = &self.0 {
            tell(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer" } else { "nobody" })
    }
}
