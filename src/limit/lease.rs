//! Leases of a limit's tokens.

use std::time::Duration;

use super::definition::Limit;
use crate::algorithm::Algorithm;
use crate::error::ConfigError;

impl Limit {
    /// Lets each process lease blocks of tokens from a database, and decide by them without a call for `term`: from 1 ms
    /// to 1 minute, in whole microseconds.
    ///
    /// All processes together never admit more than the limit. In return, a bucket holds as many tokens less as it regains
    /// in a term, and a [`SlidingLog`](crate::SlidingLog) of a period P admits its limit in P + `term`. Windows, counters
    /// and buckets with refills at intervals lose nothing: their leases end with the window. [The
    /// guide](crate::guide::leases) describes what leases save and cost, and why they are exact.
    ///
    /// Use the same term in all processes. Stores in memory need no leases, and ignore the term.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // Of the burst of 2,000, 100 are given up. A busy key costs each process some 10 calls per second, and
    /// // as many that return tokens.
    /// let requests = Limit::new("requests", TokenBucket::per_second(1_000).burst(2_000))
    ///     .by(key::header("x-api-key"))
    ///     .leased(Duration::from_millis(100));
    /// # let _ = requests;
    /// ```
    ///
    /// It is a [mistake](crate::Builder#errors) if the term is out of its range, or if a bucket regains its whole capacity
    /// in a term, or more than one token per microsecond. So it is if the limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) or a [`Concurrency`](crate::Concurrency), has a
    /// [penalty](Self::penalty), is [overridable](Self::overridable), or is in [quota mode](Self::quota_mode).
    #[doc(alias = "prefetch")]
    pub fn leased(self, term: Duration) -> Self {
        Self { lease: Some(term), ..self }
    }

    /// Returns an error if the limit can't be leased.
    pub(crate) fn check_lease(&self) -> Result<(), ConfigError> {
        let Some(term) = self.lease else { return Ok(()) };
        let because = match self.algorithm.leased(term) {
            Err(fault) => fault.as_str().to_owned(),
            Ok(_) if self.penalty.is_some() => "it has a penalty, for which the store counts denials".to_owned(),
            Ok(_) if self.is_overridable => "it is overridable, and only the store knows the size of a key".to_owned(),
            Ok(_) if self.is_quota => {
                "it is in quota mode, in which the store decides which limit is charged".to_owned()
            }
            Ok(_) => return Ok(()),
        };
        let advice = if because.contains(':') { "" } else { ": leave one of them out" };
        Err(ConfigError::new(format!("the limit {:?} can't be leased: {because}{advice}", self.name)))
    }

    /// Returns a size of the limit as it is decided in a database. A size that can't be leased is decided as it is.
    pub(super) fn leased_size(&self, size: Algorithm) -> Algorithm {
        self.lease.and_then(|term| size.leased(term).ok()).unwrap_or(size)
    }
}
