//! Leases: for how long a process may spend tokens that it has charged in advance, so that requests never exceed the
//! limit.
//!
//! A token of a block is charged at an instant t, and is spent by a request at an instant a, with t ≤ a < t + τ. The
//! *term* τ belongs to the limit, because all processes must charge by the same rule. [The
//! guide](crate::guide::leases#why-it-is-exact) derives the bound of each algorithm.

use std::time::Duration;

use super::settings::{Algorithm, BucketKind, Kind};
use super::state::{CompactState, product};
use crate::error::Fault;

const SHORTEST_TERM: Duration = Duration::from_millis(1);
const LONGEST_TERM: Duration = Duration::from_secs(60);

/// The longest pause, in µs.
const LONGEST_PAUSE: u128 = 1_000_000;

impl Algorithm {
    /// Returns the algorithm by which blocks are charged for a term: a bucket holds less, and a log lasts longer.
    pub(crate) fn leased(mut self, term: Duration) -> Result<Self, Fault> {
        if !(SHORTEST_TERM..=LONGEST_TERM).contains(&term) || !term.subsec_nanos().is_multiple_of(1_000) {
            return Err(Fault::new("a lease is ")
                .duration(term)
                .text(": use whole microseconds, from 1 ms to 1 minute"));
        }
        let [capacity, _] = self.size();
        self.term = term.as_micros() as u32;
        match self.kind {
            _ if self.is_concurrency => Err(Fault::new("its slots are returned: leave one of them out")),
            Kind::Bucket(BucketKind::Queue { .. }) => {
                Err(Fault::new("a queue gives each request a turn: use a token bucket"))
            }
            Kind::Bucket(kind) => {
                self.kind = Kind::LeasedBucket(kind);
                self.with_capacity("capacity", capacity)
            }
            Kind::Log(None) => {
                self.span += u64::from(self.term);
                Ok(self)
            }
            _ => Ok(self),
        }
    }

    /// Returns the algorithm that the limit was given, without its [lease](crate::Limit::leased): what clients are told.
    #[must_use]
    #[inline]
    pub fn without_lease(self) -> Self {
        if self.term == 0 { self } else { self.unleased() }
    }

    #[cold]
    fn unleased(self) -> Self {
        match self.kind {
            Kind::LeasedBucket(kind) => {
                Self { kind: Kind::Bucket(kind), capacity: self.capacity + self.reserve(), term: 0, ..self }
            }
            Kind::Log(None) => Self { span: self.span - u64::from(self.term), term: 0, ..self },
            _ => Self { term: 0, ..self },
        }
    }

    /// Returns the tokens of a bucket that are charged by nobody: those that it regains in a term, rounded up.
    pub(crate) const fn reserve(&self) -> u64 {
        match self.kind {
            Kind::LeasedBucket(_) => (self.amount as u128 * self.term as u128).div_ceil(self.span as u128) as u64,
            _ => 0,
        }
    }

    /// Returns an error if a bucket of so many tokens can't be leased.
    pub(super) const fn check_lease(&self, capacity: u64) -> Result<(), Fault> {
        let (reserve, term) = (self.reserve(), Duration::from_micros(self.term as u64));
        if !matches!(self.kind, Kind::LeasedBucket(_)) {
            return Ok(());
        }
        if self.amount as u64 > self.span {
            return Err(Fault::new("a leased bucket regains ")
                .number(self.amount as u64)
                .text(" tokens per ")
                .duration(Duration::from_micros(self.span))
                .text(": use at most one per microsecond, or a window"));
        }
        if reserve >= capacity {
            let longest = (capacity - 1) as u128 * self.span as u128 / self.amount as u128;
            let fault = Fault::new("a lease of ")
                .duration(term)
                .text(" takes ")
                .number(reserve)
                .text(" of a burst of ")
                .number(capacity)
                .text(" tokens: raise the burst");
            return Err(match longest {
                0..1_000 => fault,
                _ => fault.text(", or shorten the lease to at most ").duration(Duration::from_micros(longest as u64)),
            });
        }
        Ok(())
    }

    /// Returns for how long tokens may be spent that were charged at `now`, in µs: for the term, but not beyond the edge of
    /// their window, bucket or interval. `mark` is the summary of the key after the charge.
    pub(crate) fn lease_of(&self, mark: &CompactState, now: u64) -> u64 {
        let edge = match self.kind {
            Kind::IntervalBucket => mark.at,
            Kind::Window(_) => mark.expires_at,
            Kind::Counter(..) => mark.expires_at.saturating_sub(self.span),
            // The newest bucket expires a span after its start.
            Kind::Log(Some(buckets)) => mark.expires_at.saturating_sub(self.span - self.span / u64::from(buckets)),
            Kind::Bucket(_) | Kind::LeasedBucket(_) | Kind::Log(None) => u64::MAX,
        };
        edge.saturating_sub(now).min(self.term.into())
    }

    /// Returns for how long a denial stands after the first token is free again, in µs. Tokens that are regained one at a
    /// time would otherwise be leased one at a time.
    #[cold]
    pub(crate) fn pause(&self) -> u64 {
        let term = u128::from(self.term);
        let pause = match self.kind {
            Kind::LeasedBucket(_) => {
                term.min(product(self.hard_capacity(), self.span) / u128::from(self.amount.max(1))) / 4
            }
            Kind::Log(None) | Kind::Counter(..) => term / 16,
            _ => 0,
        };
        pause.min(LONGEST_PAUSE) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        Concurrency, FixedWindow, LeakyBucket, LeakyBucketQueue, SlidingLog, SlidingWindow, SlidingWindowCounter,
        TokenBucket,
    };

    const TERM: Duration = Duration::from_millis(100);

    fn leased(algorithm: impl Into<Algorithm>) -> Algorithm {
        algorithm.into().leased(TERM).unwrap()
    }

    #[test]
    fn a_lease_takes_what_a_bucket_regains_in_a_term_and_lengthens_a_log() {
        let bucket = leased(TokenBucket::per_second(15).burst(20));
        assert_eq!((bucket.capacity(), bucket.size()), (18, [20, 15]), "1.5 tokens are rounded up");
        let log = leased(SlidingLog::per_second(5));
        assert_eq!((log.capacity(), log.span), (5, 1_100_000));
    }

    #[test]
    fn without_a_lease_an_algorithm_is_as_it_was() {
        let second = Duration::from_secs(1);
        for algorithm in [
            TokenBucket::per_second(15).burst(20).into(),
            LeakyBucket::per_second(7).into(),
            SlidingLog::per_second(5).into(),
            SlidingWindow::per_second(5).into(),
            SlidingWindowCounter::per_second(5).into(),
            FixedWindow::per_second(5).into(),
            TokenBucket::new(5, 1, second).at_intervals().into(),
        ] {
            assert_eq!(leased(algorithm).without_lease(), algorithm);
            let share = |algorithm: Algorithm| algorithm.share(3);
            assert_eq!(share(leased(algorithm)), share(algorithm));
            let size = |algorithm: Algorithm| algorithm.with_size([4, 1.min(algorithm.amount)]).unwrap();
            assert_eq!(size(leased(algorithm)).without_lease(), size(algorithm));
            assert_eq!(leased(algorithm).with_overage(50).overage(), algorithm.with_overage(50).overage());
        }
    }

    #[test]
    fn what_cannot_be_leased_says_why() {
        let error = |algorithm: Algorithm, term| algorithm.leased(term).unwrap_err().as_str().to_owned();
        let bucket = Algorithm::from(TokenBucket::per_second(1_000).burst(200));
        assert_eq!(
            error(bucket, Duration::from_secs(1)),
            "a lease of 1 second takes 1000 of a burst of 200 tokens: raise the burst, or shorten the lease to at most 199 ms",
        );
        assert!(bucket.leased(Duration::from_millis(199)).is_ok());
        for term in [Duration::from_micros(999), Duration::from_millis(60_001), Duration::from_nanos(1_000_001)] {
            assert!(error(bucket, term).contains("from 1 ms to 1 minute"));
        }
        assert!(error(LeakyBucketQueue::per_second(1).into(), TERM).starts_with("a queue gives each request a turn"));
        assert!(error(Concurrency::limit(1).into(), TERM).starts_with("its slots are returned"));
        let fast = TokenBucket::new(10_000_000, 1_000_001, Duration::from_secs(1)).into();
        assert!(error(fast, TERM).contains("at most one per microsecond"));
    }
}
