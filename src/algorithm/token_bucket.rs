//! A bucket of tokens that fills up again.

use super::drain::Drain;
use super::full::FAR;
use super::ratio::div_ceil;
use super::shape::bucket_constructors;
use super::share;
use super::{Exact, Room, Standing};
use crate::record::Record;

/// A bucket of `capacity` tokens, full at first, to which `amount` tokens come back per
/// `interval`, evenly or ([`at_intervals`](Self::at_intervals)) all at once.
///
/// - **Admits at most**: `capacity` + `amount` · span / interval in any span: a burst of the
///   whole bucket, then the rate at which it fills. Filled at intervals, one `amount` more in
///   spans that are no whole number of them, as they may begin just before it comes.
/// - **Remembers**: 16 bytes a key: the instant at which the bucket is full again, and at which rate.
/// - **Choose it when** bursts are welcome and the long-run rate is what counts: the usual choice
///   for an API. Filled at intervals, it says "10 attempts, one back per hour".
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::TokenBucket;
///
/// // 10 a second on average, 20 at once.
/// let api = TokenBucket::per_second(10).burst(20);
/// assert_eq!(api, TokenBucket::new(20, 10, Duration::from_secs(1)));
///
/// // $200 at once, and $50 a day come back: evenly, or all at once when a day is over.
/// let evenly = TokenBucket::per_day(50).burst(200);
/// let daily = TokenBucket::per_day(50).burst(200).at_intervals();
///
/// // 3 a minute, all back at the minute.
/// let strict = TokenBucket::per_minute(3).at_intervals();
/// # let _ = (evenly, daily, strict);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TokenBucket {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
    refill: Refill,
}

/// How tokens come back to a [`TokenBucket`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Refill {
    /// Evenly, as fractions.
    #[default]
    Continuous,
    /// All at once, at each whole interval since the bucket was last full. A full bucket starts
    /// its intervals anew when it is next used.
    Interval,
}

bucket_constructors!(TokenBucket, burst, "at once", "back");

impl TokenBucket {
    const fn of(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval, refill: Refill::Continuous }
    }

    /// Tokens come back all at once, at each whole interval since the bucket was last full.
    #[must_use]
    pub const fn at_intervals(self) -> Self {
        self.refill(Refill::Interval)
    }

    /// Another way for tokens to come back.
    #[must_use]
    pub const fn refill(mut self, refill: Refill) -> Self {
        self.refill = refill;
        self
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.capacity)
    }

    pub(super) fn window(&self) -> u128 {
        match self.refill {
            Refill::Continuous => self.drain().span(),
            Refill::Interval => self.intervals(self.capacity().into()) * u128::from(self.interval),
        }
    }

    pub(super) fn share(self, parts: u32) -> Self {
        if self.refill == Refill::Continuous {
            return self.even_share(parts);
        }
        let (amount, interval) = share::steps(self.amount, self.interval, parts);
        Self { capacity: share::tokens(self.capacity, parts), amount, interval, ..self }
    }

    pub(super) fn refills(&self) -> Refill {
        self.refill
    }

    #[inline]
    pub(super) fn drain(&self) -> Drain {
        Drain::new(self.capacity(), self.amount, self.interval)
    }

    /// How many intervals it takes for `missing` tokens to come back.
    #[inline]
    fn intervals(&self, missing: u128) -> u128 {
        div_ceil(missing, u64::from(self.amount))
    }

    /// Of a bucket filled at intervals: the tokens missing at `now`, and how long until the next
    /// interval, in µs.
    ///
    /// It remembers an instant at which an interval ends, how many tokens are missing before it, and how many
    /// each interval brings: of another limit, another amount. The instant is that at which it will be full,
    /// unless that is so far off that it would be none to whoever only asks for it.
    #[inline]
    fn missing(&self, record: &Record, now: u64) -> (u128, u128) {
        let interval = u128::from(self.interval);
        let [at, amount] = [record.until & !FAR, record.detail >> 32];
        let [missing, each] = [record.detail & u64::from(u32::MAX), amount].map(u128::from);
        let (missing, next) = match at.checked_sub(now) {
            None | Some(0) => {
                let since = now - at;
                let ended = u128::from(since / self.interval + 1);
                (missing.saturating_sub(ended * each), interval - u128::from(since % self.interval))
            }
            Some(left) => {
                // More than there can be, where a clock stepped back: time stands still until it is due.
                let before = u128::from(left.div_ceil(self.interval) - 1);
                (missing + before * each, u128::from(left) - before * interval)
            }
        };
        match missing {
            0 => (0, interval),
            missing if amount == u64::from(self.amount) => (missing, next),
            // At another rate, that much might never come back.
            missing => (missing.min(u32::MAX.into()), next),
        }
    }

    #[inline]
    fn remember(&self, mut missing: u128, next: u128, now: u64) -> Record {
        let mut at = u128::from(now) + next;
        if let Some(over) = missing.checked_sub(u32::MAX.into()) {
            // Counted to a later interval, it is less.
            let later = self.intervals(over);
            at += later * u128::from(self.interval);
            missing -= later * u128::from(self.amount);
        }
        self.hold(at as u64, missing as u32, self.amount)
    }

    /// What a key holds of which, before an interval ends at `at`, so many tokens are missing, and `amount` come
    /// back each time.
    #[inline]
    pub(crate) fn hold(&self, at: u64, missing: u32, amount: u32) -> Record {
        if missing == 0 {
            return Record::EMPTY;
        }
        let before_last = missing.div_ceil(amount) - 1;
        let until = u128::from(at) + u128::from(before_last) * u128::from(self.interval);
        let (until, missing) = match u64::try_from(until) {
            Ok(until) if until & FAR == 0 => (until, missing - before_last * amount),
            _ => (at | FAR, missing),
        };
        Record { until, detail: u64::from(amount) << 32 | u64::from(missing) }
    }

    /// What is left, of a bucket filled at intervals.
    #[inline]
    fn standing_of(&self, missing: u128, next: u128) -> Standing {
        if missing == 0 {
            return Standing::untouched(self.capacity());
        }
        let taken = missing.min(self.capacity().into());
        Standing {
            remaining: self.capacity() - taken as u64,
            more_after: Some(self.until_missing(taken - 1, missing, next)),
            reset_after: self.until_missing(0, missing, next),
        }
    }

    /// How long until at most `missing` of `now_missing` tokens are missing, in µs.
    #[inline]
    fn until_missing(&self, missing: u128, now_missing: u128, next: u128) -> u128 {
        next + (self.intervals(now_missing - missing) - 1) * u128::from(self.interval)
    }
}

/// Of a bucket filled at intervals: for one that fills evenly, a [`Drain`] decides.
impl Exact<Record> for TokenBucket {
    #[inline(always)]
    fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        let (missing, next) = self.missing(record, now);
        match self.capacity().checked_sub(cost) {
            None => Room::Never,
            Some(most) if missing <= u128::from(most) => Room::NOW,
            Some(most) => Room::After(self.until_missing(most.into(), missing, next)),
        }
    }

    #[inline(always)]
    fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        self.take(record, now, cost).0
    }

    #[inline(always)]
    fn take(&self, record: &mut Record, now: u64, cost: u64) -> (Record, Standing) {
        let (missing, next) = self.missing(record, now);
        let missing = missing + u128::from(cost);
        *record = self.remember(missing, next, now);
        (Record { until: now + next as u64, detail: u64::from(self.amount) << 32 }, self.standing_of(missing, next))
    }

    #[inline(always)]
    fn standing(&self, record: &Record, now: u64) -> Standing {
        let (missing, next) = self.missing(record, now);
        self.standing_of(missing, next)
    }

    #[inline(always)]
    fn adopt(&self, record: &mut Record, now: u64) {
        let (missing, next) = self.missing(record, now);
        if missing > 0 && record.detail >> 32 != u64::from(self.amount) {
            *record = self.remember(missing, next, now);
        }
    }

    fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        let (missing, next) = self.missing(record, now);
        // The mark is the first instant at which tokens came back. Why they are taken to have come
        // back for this charge before all others, see `Drain::refund`: there is no room here for when the
        // bucket was last charged.
        let refills = match now.checked_sub(mark.until) {
            Some(since) => since / self.interval + 1,
            None if mark.until - now <= self.interval => 0,
            // A clock that stepped back can't say how many there were.
            None => return,
        };
        let amounts = [mark.detail >> 32, record.detail >> 32];
        if amounts != [u64::from(self.amount); 2] {
            // Nor how many tokens each brought, or is to bring: what is given back changes no rate.
            return;
        }
        let back = u128::from(cost).saturating_sub(u128::from(refills) * u128::from(self.amount));
        *record = self.remember(missing.saturating_sub(back), next, now);
    }
}
