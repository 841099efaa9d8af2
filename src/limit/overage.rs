//! Soft and elastic limits.

use std::sync::Arc;

use super::definition::{Limit, Overage};
use crate::algorithm::Algorithm;
use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::signal::Signal;

impl Limit {
    /// Makes the limit soft: adds an overage of `percent` percent, from 1, rounded down to whole tokens. The percentage
    /// is of the limit of a window, of the capacity of a bucket, or of the length of a queue.
    ///
    /// The overage is used last, and `remaining` does not include it. A request that uses it is allowed and flagged: by
    /// [`Outcome::uses_overage`](crate::Outcome::uses_overage), [`Event::OverageUsed`](crate::Event), and with
    /// [`HeaderStyle::Overage`](crate::HeaderStyle::Overage) by a header.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(10)).soft(20)]);
    /// assert!(!mails.acquire("ann", 10).await.unwrap().outcomes()[0].uses_overage());
    ///
    /// let over = mails.acquire("ann", 2).await.unwrap();
    /// assert!(over.is_allowed() && over.outcomes()[0].uses_overage());
    /// assert!(!mails.acquire("ann", 1).await.unwrap().is_allowed());
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens or take more than
    /// 142 years to drain. [`try_soft`](Self::try_soft)
    /// returns an error instead.
    #[track_caller]
    pub fn soft(self, percent: u32) -> Self {
        or_panic(self.try_soft(percent))
    }

    /// Fallible version of [`soft`](Self::soft).
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens or take more than
    /// 142 years to drain.
    pub fn try_soft(self, percent: u32) -> Result<Self, ConfigError> {
        self.with_overage(percent, None)
    }

    /// Makes the limit elastic: adds an overage as [`soft`](Self::soft) does, but only while `signal` reports spare
    /// capacity. Use [`InFlight`](crate::InFlight) or a closure as the signal. Used overage keeps counting after the
    /// spare capacity is gone. Replaces any previous `soft` or `elastic`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// let is_idle = Arc::new(AtomicBool::new(true));
    /// let limit = Limit::new("search", TokenBucket::per_second(10))
    ///     .by(key::peer_ip())
    ///     .elastic(100, move || is_idle.load(Ordering::Relaxed));
    /// # let _ = limit;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens or take more than
    /// 142 years to drain. [`try_elastic`](Self::try_elastic)
    /// returns an error instead.
    #[track_caller]
    pub fn elastic(self, percent: u32, signal: impl Signal) -> Self {
        or_panic(self.try_elastic(percent, signal))
    }

    /// Fallible version of [`elastic`](Self::elastic).
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens or take more than
    /// 142 years to drain.
    pub fn try_elastic(self, percent: u32, signal: impl Signal) -> Result<Self, ConfigError> {
        self.with_overage(percent, Some(Arc::new(signal)))
    }

    fn with_overage(self, percent: u32, signal: Option<Arc<dyn Signal>>) -> Result<Self, ConfigError> {
        if percent == 0 {
            return Err(ConfigErrorKind::SoftZero { limit: self.name.to_string() }.into());
        }
        self.check_overage(&self.algorithm, percent)?;
        Ok(Self { overage: Some(Overage { percent, signal }), ..self })
    }

    /// Returns an error if `algorithm` and an overage of `percent` percent exceed the tokens that a limit can have.
    pub(super) fn check_overage(&self, algorithm: &Algorithm, percent: u32) -> Result<(), ConfigError> {
        let ([tokens, _], [raised, _]) = (algorithm.size(), algorithm.with_overage(percent).size());
        if u64::from(raised) < u64::from(tokens) + u64::from(tokens) * u64::from(percent) / 100 {
            let capacity = algorithm.capacity();
            return Err(ConfigErrorKind::SoftTooLarge { limit: self.name.to_string(), percent, capacity }.into());
        }
        Ok(())
    }
}
