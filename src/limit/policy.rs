//! The policies for requests that a limit can't decide: without a key, or while the store fails.

use crate::error::validation::checked;
use crate::error::{ConfigError, Fault};
use crate::key::KeyError;

/// The policy of a limit for requests without a key. Set it with
/// [`Limit::on_missing_key`](crate::Limit::on_missing_key).
///
/// It does not apply to [ambiguous](crate::key::KeyError::Ambiguous) keys: those requests are always rejected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request: with 400, or with 500 if the server provides the key for no request.
    #[default]
    Reject,
    /// Does not apply the limit to the request.
    Skip,
    /// Charges one bucket for all requests without a key: that of [`key::Shared`](crate::key::Shared).
    Share,
}

impl OnMissingKey {
    /// Returns whether a request whose key is missing for this reason is charged to the shared bucket.
    pub(crate) fn shares(self, error: KeyError) -> bool {
        self == Self::Share && error != KeyError::Ambiguous
    }
}

/// The policy for requests that the store does not decide: because it fails, does not reply before the deadline, or is
/// skipped while its [circuit breaker](crate::CircuitBreaker) is open.
///
/// The limits of one request can have different policies:
///
/// - If any of them has the policy `Reject`, the request is rejected, and nothing is charged locally.
/// - Otherwise all limits with the policy `DecideLocally` decide together, all or nothing.
/// - Limits with the policy `Allow` are skipped: they neither deny nor charge.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Rejects requests with 503 and `Retry-After`.
    #[default]
    Reject,
    /// Forwards requests without counting them.
    Allow,
    /// Decides in the memory of this process, by a share of each limit.
    ///
    /// The table holds up to 100,000 keys, and is allocated when it is first needed. Keys start unused. If the store
    /// fails again later, a key continues with its local state from the previous outage. Usage belongs to the name, the
    /// algorithm and the period of the limit, and to the period of the share, so that most replacements of
    /// [live limits](crate::LiveLimits) keep it. [Overrides](crate::LimitHandle#overrides) do not apply.
    ///
    /// Denied requests get the usual response. A cost that fits the limit but exceeds the share is rejected as by
    /// `Reject`, since only the store could ever allow it. `RateLimit-Policy` and similar headers describe the whole
    /// limit, while the remaining tokens are those of the share. Requests that are allowed locally are not charged to
    /// the store later.
    DecideLocally(Share),
}

/// The part of a limit that each process may allow while the shared store does not decide.
///
/// - A window's limit is divided and rounded down, so that all processes together stay within the limit. If the result
///   is less than 1, the share is 1 in a longer period with the same average.
/// - A bucket's capacity is divided and rounded down, to at least 1. Its rate is divided exactly.
///
/// Periods and intervals are at most 366 days. A share of 1 in that time can exceed its part of the limit. The share of
/// a calendar window has as many whole windows as needed.
///
/// ```
/// use tower_ratelimit::{Limit, OnStoreError, RateLimitLayer, Share, TokenBucket};
///
/// // Four processes: while the store fails, each allows 25 a second, 50 at once.
/// const SHARE: Share = Share::one_of(4);
/// let limits = RateLimitLayer::builder([Limit::new("burst", TokenBucket::per_second(100).burst(200))])
///     .on_store_error(OnStoreError::DecideLocally(SHARE))
///     .build();
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Share {
    /// The number of processes.
    pub(crate) parts: u32,
}

impl Share {
    /// Creates the share of one process, of `processes` in total.
    ///
    /// # Panics
    ///
    /// Panics if `processes` is 0. In a constant, this is a compile-time error. [`try_one_of`](Self::try_one_of)
    /// returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn one_of(processes: u32) -> Self {
        checked!(Self::of(processes))
    }

    /// Fallible version of [`one_of`](Self::one_of).
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is 0.
    pub fn try_one_of(processes: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(processes)?)
    }

    /// Creates a share of the whole limit, so that each process allows as much as the store would.
    #[must_use]
    pub const fn whole() -> Self {
        Self { parts: 1 }
    }

    const fn of(processes: u32) -> Result<Self, Fault> {
        let message = "a limit is shared by 0 processes: count all processes that share it, including this one";
        if processes == 0 { Err(Fault::new(message)) } else { Ok(Self { parts: processes }) }
    }
}
