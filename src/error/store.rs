//! Errors of a store.

use std::fmt;
use std::time::Duration;

use crate::node::Node;

/// A failure of a store. It is not a denial: [`OnStoreError`](crate::OnStoreError) decides what happens to the request.
///
/// The message includes the causes, in one line. It is for operators. For clients, use [`response`](Self::response).
/// With the feature `axum`, the error implements Axum's `IntoResponse`, so that a handler can return it.
///
/// [`kind`](Self::kind) classifies the failure, and [`source`](std::error::Error::source) returns the cause, for example
/// the error of the database's client. `Debug` shows the message too.
///
/// ```
/// use tower_ratelimit::{StoreError, StoreErrorKind};
///
/// let error = StoreError::new("the cable is out");
/// assert_eq!(error.kind(), StoreErrorKind::Failed);
/// assert_eq!(error.to_string(), "the rate limit store could not decide: the cable is out");
/// ```
pub struct StoreError {
    cause: Cause,
    node: Option<Node>,
}

enum Cause {
    /// The store can't be used yet, or not as it is configured.
    #[cfg(feature = "redis")]
    Unusable {
        /// The store's address, without credentials.
        at: Option<String>,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The store works, but could not decide one request.
    RequestFailed(Box<dyn std::error::Error + Send + Sync>),
    TimedOut {
        deadline: Duration,
    },
    #[cfg(feature = "redis")]
    QueueFull(Box<dyn std::error::Error + Send + Sync>),
    Contention,
    BreakerOpen,
    NotSupported,
    OverridesFull {
        max: usize,
    },
    ChargeCount {
        given: usize,
        limits: usize,
    },
}

/// The kinds of [`StoreError`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store failed. The error's [`source`](std::error::Error::source) is the cause.
    Failed,
    /// The store did not answer within the [deadline](crate::Builder::deadline).
    TimedOut,
    /// The store was not called, because too many requests are waiting for it. Does not affect the
    /// [circuit breaker](crate::CircuitBreaker).
    QueueFull,
    /// The store gave up, because other requests changed or held a key of the request. Does not affect
    /// the [circuit breaker](crate::CircuitBreaker). Only a [`CasStore`](crate::store::CasStore) returns it.
    Contention,
    /// The store was not called, because the [circuit breaker](crate::CircuitBreaker) is open.
    BreakerOpen,
    /// The store does not support [overrides](crate::Overrides).
    NotSupported,
    /// The store has its [maximum](crate::MemoryStore::max_overrides) of [overrides](crate::Overrides).
    Full,
    /// The store was not called: [`acquire_costs`](crate::Limiter::acquire_costs) or
    /// [`acquire_charges`](crate::Limiter::acquire_charges) was given more or fewer charges than there are limits.
    ChargeCount {
        /// The number of charges.
        given: usize,
        /// The number of limits.
        limits: usize,
    },
}

impl StoreError {
    const fn of(cause: Cause) -> Self {
        Self { cause, node: None }
    }

    /// Wraps the cause of a failure of the store. It counts for the [circuit breaker](crate::CircuitBreaker).
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::Failed(source.into()))
    }

    /// Wraps the cause why a working store can't decide one request, such as invalid data under its keys. It does not
    /// count for the [circuit breaker](crate::CircuitBreaker).
    pub fn of_one_request(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::RequestFailed(source.into()))
    }

    /// Sets the node that failed, for stores [with several](crate::Store::node).
    #[must_use]
    pub fn at(self, node: Node) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Returns the node that failed, if the store has several and the node is known.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns whether the error concerns one request rather than the store.
    pub(crate) const fn is_of_one_request(&self) -> bool {
        matches!(
            self.cause,
            Cause::RequestFailed(_) | Cause::NotSupported | Cause::OverridesFull { .. } | Cause::ChargeCount { .. }
        )
    }

    /// Returns whether other requests were in the way, which does not show whether the store works.
    pub(crate) const fn is_inconclusive(&self) -> bool {
        matches!(self.kind(), StoreErrorKind::QueueFull | StoreErrorKind::Contention)
    }

    /// Wraps the cause why the store, whose address may be `at`, can't be used at all.
    #[cfg(feature = "redis")]
    pub(crate) fn unusable(at: Option<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::Unusable { at, source: source.into() })
    }

    pub(crate) const fn timed_out(deadline: Duration) -> Self {
        Self::of(Cause::TimedOut { deadline })
    }

    /// Wraps the description of the queue that is full.
    #[cfg(feature = "redis")]
    pub(crate) fn queue_full(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::QueueFull(source.into()))
    }

    pub(crate) const fn contention() -> Self {
        Self::of(Cause::Contention)
    }

    pub(crate) const fn breaker_open() -> Self {
        Self::of(Cause::BreakerOpen)
    }

    pub(crate) const fn not_supported() -> Self {
        Self::of(Cause::NotSupported)
    }

    pub(crate) const fn full(max: usize) -> Self {
        Self::of(Cause::OverridesFull { max })
    }

    pub(crate) const fn charge_count(given: usize, limits: usize) -> Self {
        Self::of(Cause::ChargeCount { given, limits })
    }

    /// Returns the kind of failure.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        match self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { .. } => StoreErrorKind::Failed,
            Cause::Failed(_) | Cause::RequestFailed(_) => StoreErrorKind::Failed,
            Cause::TimedOut { .. } => StoreErrorKind::TimedOut,
            #[cfg(feature = "redis")]
            Cause::QueueFull(_) => StoreErrorKind::QueueFull,
            Cause::Contention => StoreErrorKind::Contention,
            Cause::BreakerOpen => StoreErrorKind::BreakerOpen,
            Cause::NotSupported => StoreErrorKind::NotSupported,
            Cause::OverridesFull { .. } => StoreErrorKind::Full,
            Cause::ChargeCount { given, limits } => StoreErrorKind::ChargeCount { given, limits },
        }
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_summary(f)?;
        let mut source = std::error::Error::source(self);
        let mut previous = String::new();
        while let Some(error) = source {
            let text = error.to_string();
            // Some errors include the message of their cause.
            if !previous.ends_with(&text) {
                write!(f, ": {text}")?;
                previous = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl StoreError {
    /// Writes what happened, without the causes.
    fn fmt_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.node.as_ref().map_or_else(String::new, |node| format!(" at {node}"));
        match &self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { at: Some(at), .. } => write!(f, "the rate limit store at {at} can't be used"),
            #[cfg(feature = "redis")]
            Cause::Unusable { at: None, .. } => write!(f, "the rate limit store can't be used"),
            Cause::Failed(_) | Cause::RequestFailed(_) => write!(f, "the rate limit store{at} could not decide"),
            Cause::TimedOut { deadline } => write!(f, "the rate limit store{at} did not answer within {deadline:?}"),
            #[cfg(feature = "redis")]
            Cause::QueueFull(_) => {
                write!(f, "the rate limit store{at} was not called, because too many requests are waiting for it")
            }
            Cause::Contention => write!(
                f,
                "the rate limit store{at} gave up, because other requests changed or held a key of the request: too \
                 many requests charge it at once, or the store is slow"
            ),
            Cause::BreakerOpen => {
                write!(
                    f,
                    "the rate limit store{at} was not called, because its circuit breaker is open after repeated failures"
                )
            }
            Cause::NotSupported => write!(
                f,
                "the rate limit store does not support overrides: use `MemoryStore` or `RedisStore`, or forward the methods \
                 for overrides to the store that yours wraps"
            ),
            Cause::OverridesFull { max } => write!(
                f,
                "the rate limit store has {max} overrides, its maximum: remove some, or raise \
                 `MemoryStore::max_overrides`"
            ),
            Cause::ChargeCount { given, limits } => write!(
                f,
                "there are {given} charges for {limits} limits: give one for each limit, with a cost of 0 where it \
                 takes nothing; if the limits were replaced at runtime, read the current ones by `LiveLimits::limits`"
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { source, .. } => Some(&**source),
            #[cfg(feature = "redis")]
            Cause::QueueFull(source) => Some(&**source),
            Cause::Failed(source) | Cause::RequestFailed(source) => Some(&**source),
            _ => None,
        }
    }
}
