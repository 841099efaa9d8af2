//! The error of an operation that a limiter does not allow.

use std::fmt;
use std::time::Duration;

use crate::error::StoreError;
use crate::text::RoundedUp;

/// The error of an operation that a limiter does not allow: of [`Limiter::try_acquire`](crate::Limiter::try_acquire),
/// [`Limiter::wait`](crate::Limiter::wait), and [`CallError::Limited`](crate::CallError::Limited).
///
/// The message includes the causes of failures, and is for operators. For clients, use [`response`](Self::response).
/// With the feature `axum`, the error implements Axum's `IntoResponse`, so that a handler can return it. It converts
/// from a [`StoreError`], so that `?` works on the other methods of a limiter, too.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit denies the operation.
    #[non_exhaustive]
    Denied {
        /// The shortest wait after which it would be allowed, if nothing else is charged. `None` if no wait can help,
        /// because the cost exceeds the capacity. If a queue would delay the operation for longer than
        /// [`wait_at_most`](crate::Limiter::wait_at_most) may wait, it is that delay. Zero if the limits
        /// would allow it, but earlier operations were still waiting.
        retry_after: Option<Duration>,
    },
    /// The store could not decide, and the [policy](crate::OnStoreError) is to reject.
    Store(StoreError),
}

impl AcquireError {
    /// Returns whether a limit denies the operation, rather than the store having failed.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }
}

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied { retry_after: Some(wait) } => {
                write!(f, "rate limit exceeded: retry after {}", RoundedUp(*wait))
            }
            Self::Denied { retry_after: None } => {
                f.write_str("rate limit exceeded: the cost exceeds the capacity of a limit: lower the cost")
            }
            Self::Store(error) => write!(f, "rate limit not decided: {error}"),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied { .. } => None,
            // The store's error is part of this one's text, so its cause comes next.
            Self::Store(error) => error.source(),
        }
    }
}
