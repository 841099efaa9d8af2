//! What becomes of requests that a store does not decide.

use std::num::NonZeroU32;

use crate::error::{ConfigError, Fault};
use crate::quota::checked;

/// What becomes of requests when the store can't decide, as it failed, did not answer in time, or was
/// not asked (see [`CircuitBreaker`](crate::CircuitBreaker)).
///
/// Of a request with several limits: where one of them says `Reject`, it is refused, and nothing is
/// charged in this process. Otherwise those that decide locally do so together, all or nothing, and
/// those that say `Allow` don't count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// They are refused: 503, with `Retry-After`.
    #[default]
    Reject,
    /// They go on, uncounted.
    Allow,
    /// This process decides by itself, with its share of the limit, in memory: of 100,000 keys at
    /// most, which takes none until it is first needed. Every key starts unused then, and one that was
    /// in use when the store last failed goes on from there.
    ///
    /// Who is denied is answered as ever. A cost that fits the limit, but not the share of it, is
    /// refused as by `Reject`: to wait here would not help, and what helps is that the store comes
    /// back. `RateLimit-Policy` and the like tell the whole limit; what is left is of the share. What it
    /// allows is not charged to the store later.
    DecideLocally(Share),
}

/// What one of several nodes may allow by itself, when the store that they share does not decide.
///
/// - Of a window's limit, a part, rounded down: all nodes together stay within the limit. Where that
///   would be less than 1, it is 1 in several periods, so that the average is no more.
/// - Of a bucket's capacity, a part, rounded down, at least 1; of its rate, exactly a part.
///
/// No period or interval becomes longer than 366 days; a share of at least 1 in that time may then be
/// more than a part.
///
/// ```
/// use tower_ratelimit::{Limit, OnStoreError, RateLimitLayer, Share, TokenBucket};
///
/// // Four nodes: while the store fails, each allows 25 a second, 50 at once.
/// const SHARE: Share = Share::one_of(4);
/// let limits = RateLimitLayer::new([Limit::new("burst", TokenBucket::per_second(100).burst(200))])
///     .on_store_error(OnStoreError::DecideLocally(SHARE));
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Share {
    parts: NonZeroU32,
}

impl Share {
    /// The share of one of `nodes`, from 1.
    ///
    /// # Panics
    ///
    /// When `nodes` is 0; at compile time in a constant. [`try_one_of`](Self::try_one_of) returns an
    /// error instead.
    #[must_use]
    #[track_caller]
    pub const fn one_of(nodes: u32) -> Self {
        checked!(Self::of(nodes))
    }

    /// Like [`one_of`](Self::one_of), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `nodes` is 0.
    pub fn try_one_of(nodes: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(nodes)?)
    }

    /// All of the limit, for each node.
    #[must_use]
    pub const fn whole() -> Self {
        Self { parts: NonZeroU32::MIN }
    }

    const fn of(nodes: u32) -> Result<Self, Fault> {
        match NonZeroU32::new(nodes) {
            Some(parts) => Ok(Self { parts }),
            None => Err(Fault::NoNodes),
        }
    }

    pub(super) const fn parts(self) -> u32 {
        self.parts.get()
    }
}
