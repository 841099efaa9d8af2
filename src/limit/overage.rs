//! Soft and elastic limits.

use std::sync::Arc;

use super::definition::{Limit, Overage};
use crate::algorithm::Algorithm;
use crate::error::ConfigError;
use crate::signal::Signal;

impl Limit {
    /// Makes the limit soft: adds an overage of `percent` percent, from 1, rounded down to whole tokens. The percentage
    /// is of the limit of a window, of the capacity of a bucket, or of the length of a queue.
    ///
    /// The overage is used last, and `remaining` does not include it. A request that uses it is allowed and flagged: by
    /// [`Cell::uses_overage`](crate::store::Cell::uses_overage), [`Event::OverageUsed`](crate::Event), and with
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
    /// It is a [mistake](crate::Builder#errors) if `percent` is 0, or if the limit and its overage exceed 2^32 − 1 tokens
    /// or take more than 142 years to drain. It is reported when a layer or limiter is built.
    pub fn soft(self, percent: u32) -> Self {
        Self { overage: Some(Overage { percent, signal: None }), ..self }
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
    pub fn elastic(self, percent: u32, signal: impl Signal) -> Self {
        Self { overage: Some(Overage { percent, signal: Some(Arc::new(signal)) }), ..self }
    }

    /// Returns an error if the overage is 0 percent, or if `algorithm` and the overage exceed the tokens that a limit can
    /// have.
    pub(crate) fn check_overage(&self, algorithm: &Algorithm) -> Result<(), ConfigError> {
        let Some(Overage { percent, .. }) = self.overage else { return Ok(()) };
        if percent == 0 {
            let message = format!("the limit {:?} is soft by 0 %: use at least 1, or leave it hard", self.name);
            return Err(ConfigError::new(message));
        }
        let [tokens, _] = algorithm.size();
        if algorithm.with_overage(percent).overage() < u64::from(tokens) * u64::from(percent) / 100 {
            return Err(ConfigError::new(format!(
                "the limit {:?} of {} and {percent} % of that are more than the 4,294,967,295 tokens that a limit can \
                 have, or take more than 142 years to drain: lower one",
                self.name,
                algorithm.capacity()
            )));
        }
        Ok(())
    }
}
