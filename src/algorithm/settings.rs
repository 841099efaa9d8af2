//! [`Algorithm`]: the kind of a limit, and the numbers that it decides by.

use std::fmt;
use std::time::Duration;

use super::calendar::Calendar;
use super::state::{div_ceil, product};
use crate::error::Fault;
use crate::error::validation::{self, LONGEST};
use crate::text::exact;
use crate::time::Timestamp;

/// Any of the [algorithms](crate::algorithm), with its numbers.
///
/// ```
/// use tower_ratelimit::{Algorithm, TokenBucket};
///
/// let algorithm = Algorithm::from(TokenBucket::per_second(10).burst(20));
/// assert_eq!(algorithm.capacity(), 20);
/// assert_eq!(algorithm.to_string(), "a token bucket of 10 per second with a capacity of 20");
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Algorithm {
    pub(crate) kind: Kind,
    /// The tokens that a bucket regains per interval. 0 for windows.
    pub(crate) amount: u32,
    /// The tokens beyond the capacity that are allowed and flagged.
    pub(crate) overage: u32,
    /// The tokens of a window, or those that fit into a bucket: of a queue, those that wait and those that do not.
    pub(crate) capacity: u64,
    /// The period of a window, or the interval of a bucket, in µs. 0 for a calendar.
    pub(crate) span: u64,
    /// Whether the tokens are slots of requests in flight: in a log while they expire, or else in a window without an end.
    pub(crate) is_concurrency: bool,
    /// The time within which leased tokens are spent, in µs: see [`lease`](super::lease). 0 without leases.
    pub(crate) term: u32,
}

/// The rule by which an algorithm decides.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Kind {
    /// A bucket that drains continuously.
    Bucket(BucketKind),
    /// A bucket that drains continuously, from which blocks are leased.
    LeasedBucket(BucketKind),
    /// A bucket that regains tokens at the end of each interval.
    IntervalBucket,
    /// A counter per window: of a calendar, or else of `span`.
    Window(Option<Calendar>),
    /// Counters of two windows, and the weight of the previous one in percent.
    Counter(Rounding, u8),
    /// A log of charges, in this number of buckets per window, or else by the microsecond.
    Log(Option<u32>),
}

impl Kind {
    /// Lowers the number of buckets until they divide the period.
    const fn fit(self, period: u64) -> Self {
        let Self::Log(Some(mut buckets)) = self else { return self };
        while !period.is_multiple_of(buckets as u64) {
            buckets -= 1;
        }
        Self::Log(Some(buckets))
    }
}

/// The span of slots without an end, in µs, and the instant at which they expire: in the year 3111.
pub(crate) const NO_END: u64 = 1 << 55;

/// The use of a bucket that drains continuously.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum BucketKind {
    Token,
    Leaky,
    /// A queue, in which `burst` tokens proceed at once, in addition to the one whose turn it is.
    Queue {
        burst: u32,
    },
}

/// The algorithms, and penalties, as the script of the Redis store knows them.
#[derive(Clone, Copy)]
pub(crate) enum ScriptTag {
    Bucket,
    Queue,
    LeasedBucket,
    IntervalBucket,
    FixedWindow,
    CalendarWindow,
    CounterDown,
    CounterUp,
    Log,
    #[cfg(feature = "redis")]
    Penalty,
}

/// The direction in which a [`SlidingWindowCounter`](crate::SlidingWindowCounter) rounds the weighted count of the
/// previous window.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Rounding {
    /// Counts a fraction of a token as a whole one: never admits more than the estimate.
    #[default]
    Up,
    /// Drops a fraction of a token.
    Down,
}

/// The tokens of a limit, which are all that an override changes: those of a window, or the capacity and the amount of
/// a bucket.
pub(crate) type Size = [u32; 2];

impl Algorithm {
    /// Creates a window of `limit` tokens per `period`.
    pub(super) const fn window_of(kind: Kind, limit: u32, period: Duration) -> Result<Self, Fault> {
        match (validation::tokens("limit", limit), validation::span("period", period)) {
            (Ok(limit), Ok(span)) => {
                let (kind, capacity) = (kind.fit(span), limit as u64);
                Ok(Self { kind, amount: 0, overage: 0, capacity, span, is_concurrency: false, term: 0 })
            }
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        }
    }

    /// Creates a bucket of `capacity` tokens, which regains `amount` tokens per `interval`.
    pub(super) const fn bucket(kind: Kind, capacity: u32, amount: u32, interval: Duration) -> Result<Self, Fault> {
        let tokens = (validation::tokens("capacity", capacity), validation::tokens("amount", amount));
        match (tokens, validation::span("interval", interval)) {
            ((Ok(_), Ok(amount)), Ok(span)) => {
                Self { kind, amount, overage: 0, capacity: 0, span, is_concurrency: false, term: 0 }
                    .with_capacity("capacity", capacity)
            }
            ((Err(fault), _), _) | ((_, Err(fault)), _) | (_, Err(fault)) => Err(fault),
        }
    }

    /// Returns the bucket with another capacity, which is called `what` in errors.
    pub(super) const fn with_capacity(mut self, what: &'static str, capacity: u32) -> Result<Self, Fault> {
        if let Err(fault) = validation::tokens(what, capacity) {
            return Err(fault);
        }
        let (capacity, reserve) = (capacity as u64, self.reserve());
        if let Err(fault) = self.check_lease(capacity) {
            return Err(fault);
        }
        self.capacity = capacity + self.at_once() - reserve;
        if self.capacity > self.most_tokens() {
            return Err(Fault::new("a bucket of ")
                .number(self.capacity)
                .text(" tokens takes more than 142 years to fill or drain at ")
                .number(self.amount as u64)
                .text(" per ")
                .duration(Duration::from_micros(self.span))
                .text(": lower the capacity, or raise the rate"));
        }
        Ok(self)
    }

    /// Returns the queue with another burst.
    pub(super) const fn with_burst(mut self, burst: u32) -> Result<Self, Fault> {
        let [waiting, _] = self.size();
        if burst.checked_add(waiting).is_none() {
            return Err(Fault::new("burst is ")
                .number(burst as u64)
                .text(", which with ")
                .number(waiting as u64)
                .text(" tokens that may wait is more than 4294967295: lower one of them"));
        }
        self.kind = Kind::Bucket(BucketKind::Queue { burst });
        self.with_capacity("waiting", waiting)
    }

    /// Returns the counter with another weight of its previous window.
    pub(super) const fn with_weight(mut self, percent: u32) -> Result<Self, Fault> {
        match self.kind {
            Kind::Counter(rounding, _) if percent >= 1 && percent <= 100 => {
                self.kind = Kind::Counter(rounding, percent as u8);
                Ok(self)
            }
            _ => Err(Fault::new("weight is ").number(percent as u64).text(" %: use 1 to 100")),
        }
    }

    /// Returns the token bucket with refills at intervals.
    pub(super) const fn at_intervals(mut self) -> Result<Self, Fault> {
        self.kind = Kind::IntervalBucket;
        self.with_capacity("capacity", self.capacity as u32)
    }

    /// Returns the most tokens that fill or drain in the longest time. Windows have no such bound.
    const fn most_tokens(&self) -> u64 {
        match self.kind {
            // In whole intervals.
            Kind::IntervalBucket => validation::most_tokens(1, self.span) * self.amount as u64,
            Kind::Bucket(_) | Kind::LeasedBucket(_) => validation::most_tokens(self.amount, self.span),
            _ => u64::MAX,
        }
    }

    /// Returns the name of the kind, such as `fixed window`. A store that supports only some kinds can check it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let (_, name, ..) = self.properties();
        if self.is_concurrency { "concurrency limit" } else { name }
    }

    /// Returns the largest cost that can ever be allowed without overage, in tokens.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the tokens beyond the [`capacity`](Self::capacity) that are allowed and flagged: see
    /// [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn overage(&self) -> u64 {
        self.overage.into()
    }

    /// Returns the largest cost that can ever be allowed, including overage.
    #[inline]
    pub(crate) fn hard_capacity(&self) -> u64 {
        self.capacity + u64::from(self.overage)
    }

    /// Returns the span over which [`capacity`](Self::capacity) is allowed: the period of a window, the time in which
    /// an empty bucket fills, or the length of the calendar window that contains the instant `at`. Zero for a
    /// concurrency limit.
    #[must_use]
    pub fn window_at(&self, at: Timestamp) -> Duration {
        Duration::from_micros(match self.kind {
            _ if self.is_concurrency => 0,
            Kind::Window(Some(calendar)) => {
                let (start, end) = calendar.window((at.as_micros() / 1_000_000) as i64);
                (end - start) as u64 * 1_000_000
            }
            Kind::IntervalBucket => self.capacity.div_ceil(self.amount.into()) * self.span,
            Kind::Bucket(_) | Kind::LeasedBucket(_) => div_ceil(product(self.capacity, self.span), self.amount.into()),
            _ => self.span,
        })
    }

    pub(crate) const fn is_bucket(&self) -> bool {
        matches!(self.kind, Kind::Bucket(_) | Kind::LeasedBucket(_) | Kind::IntervalBucket)
    }

    /// Returns the burst of a queue.
    #[inline]
    pub(crate) const fn queue_burst(&self) -> Option<u32> {
        if let Kind::Bucket(BucketKind::Queue { burst }) = self.kind { Some(burst) } else { None }
    }

    /// Returns the tokens that a limit holds beyond its size: those of a queue that do not wait.
    pub(crate) const fn at_once(&self) -> u64 {
        if let Some(burst) = self.queue_burst() { 1 + burst as u64 } else { 0 }
    }

    /// Returns the algorithm as stores use it whose states end with this process: slots of a concurrency limit do not
    /// expire.
    pub(crate) fn without_expiry(self) -> Self {
        if self.is_concurrency { Self { kind: Kind::Window(None), span: NO_END, ..self } } else { self }
    }

    /// Returns whether windows begin and end by the wall clock.
    #[inline]
    pub(crate) const fn is_calendar(&self) -> bool {
        matches!(self.kind, Kind::Window(Some(_)))
    }

    /// Returns whether the state of a key is a log.
    #[inline]
    pub(crate) const fn keeps_log(&self) -> bool {
        let (.., keeps_log) = self.properties();
        keeps_log
    }

    /// Returns the number of windows in which keys are counted. Returns `None` if all keys don't have the same windows,
    /// or if their states are not counts.
    pub(crate) const fn counted_windows(&self) -> Option<usize> {
        match self.kind {
            // Slots are returned.
            _ if self.is_concurrency => None,
            Kind::Window(_) => Some(1),
            Kind::Counter(..) => Some(2),
            _ => None,
        }
    }

    /// Returns the tag in storage keys, the name in words, the tag in the script of the Redis store, and whether the
    /// state of a key is a log. Kinds with incompatible states have different tags in storage keys.
    #[inline]
    pub(crate) const fn properties(&self) -> (&'static str, &'static str, ScriptTag, bool) {
        match self.kind {
            Kind::Bucket(BucketKind::Token) => ("tb", "token bucket", ScriptTag::Bucket, false),
            Kind::Bucket(BucketKind::Leaky) => ("lb", "leaky bucket", ScriptTag::Bucket, false),
            Kind::Bucket(BucketKind::Queue { .. }) => ("lq", "leaky bucket queue", ScriptTag::Queue, false),
            Kind::LeasedBucket(BucketKind::Leaky) => ("ll", "leaky bucket", ScriptTag::LeasedBucket, false),
            Kind::LeasedBucket(_) => ("tl", "token bucket", ScriptTag::LeasedBucket, false),
            Kind::IntervalBucket => ("ti", "token bucket (at intervals)", ScriptTag::IntervalBucket, false),
            Kind::Window(None) => ("fw", "fixed window", ScriptTag::FixedWindow, false),
            Kind::Window(Some(_)) => ("cw", "calendar window", ScriptTag::CalendarWindow, false),
            Kind::Counter(Rounding::Up, _) => ("sc", "sliding window counter", ScriptTag::CounterUp, false),
            Kind::Counter(Rounding::Down, _) => {
                ("sc", "sliding window counter (rounded down)", ScriptTag::CounterDown, false)
            }
            Kind::Log(None) => ("sl", "sliding log", ScriptTag::Log, true),
            Kind::Log(Some(_)) => ("sw", "sliding window", ScriptTag::Log, true),
        }
    }

    /// Describes the algorithm in words.
    fn describe(&self) -> String {
        if self.is_concurrency {
            return format!("a concurrency limit of {}", self.capacity);
        }
        if self.term > 0 {
            return format!("{}, leased for {}", self.without_lease(), exact(Duration::from_micros(self.term.into())));
        }
        let ([capacity, amount], name) = (self.size(), self.name());
        let tokens = if self.is_bucket() { amount } else { capacity };
        let span = exact(Duration::from_micros(self.span)).to_string();
        // "1 hour" is written as "per hour", but not "1 hour 30 minutes".
        let span = span.strip_prefix("1 ").filter(|unit| !unit.contains(' ')).unwrap_or(&span);
        let period = match self.kind {
            Kind::Window(Some(calendar)) => calendar.describe(),
            Kind::Log(Some(buckets)) => format!("{span} in {buckets} buckets"),
            _ => span.to_owned(),
        };
        let more = match self.kind {
            Kind::Bucket(BucketKind::Queue { burst: 1.. }) => {
                format!(" with a capacity of {capacity} after a burst of {}", self.at_once() - 1)
            }
            _ if self.is_bucket() => format!(" with a capacity of {capacity}"),
            Kind::Counter(_, weight @ ..100) => format!(" with a weight of {weight} %"),
            _ => String::new(),
        };
        format!("a {name} of {tokens} per {period}{more}")
    }

    /// Returns the tag in storage keys.
    pub(crate) fn tag(&self) -> &'static str {
        let (tag, ..) = self.properties();
        if self.is_concurrency { "cl" } else { tag }
    }

    /// Returns the period that the state of a key is relative to, as it appears in storage keys: `60s`, `1500000u`,
    /// `3600s.10`, `m15.Europe/Berlin`.
    pub(crate) fn state_period(&self) -> String {
        let span = match self.span {
            span if span.is_multiple_of(1_000_000) => format!("{}s", span / 1_000_000),
            span => format!("{span}u"),
        };
        match self.kind {
            Kind::Window(Some(calendar)) => calendar.to_string(),
            Kind::Log(Some(buckets)) => format!("{span}.{buckets}"),
            _ => span,
        }
    }

    /// Returns the tokens of the limit.
    pub(crate) const fn size(&self) -> Size {
        [(self.capacity + self.reserve() - self.at_once()) as u32, self.amount]
    }

    /// Returns the algorithm with another size and without overage, or `None` if that is out of range.
    pub(crate) fn with_size(mut self, [capacity, amount]: Size) -> Option<Self> {
        self.overage = 0;
        if self.is_bucket() {
            self.amount = validation::tokens("amount", amount).ok()?;
            return self.with_capacity("capacity", capacity).ok();
        }
        self.capacity = validation::tokens("limit", capacity).ok()?.into();
        Some(self)
    }

    /// Returns whether another size of the algorithm shares the state of a key: all but the tokens is the same.
    pub(crate) fn shares_state_with(self, other: &Self) -> bool {
        self.with_size(other.size()) == Some(*other)
    }

    /// Returns the algorithm with an overage of `percent` percent, rounded down to whole tokens, and at most as much as
    /// is in range.
    pub(crate) fn with_overage(self, percent: u32) -> Self {
        let [tokens, _] = self.size();
        let overage = u64::from(tokens) * u64::from(percent) / 100;
        let overage = overage.min((u32::MAX - tokens).into()).min(self.most_tokens().saturating_sub(self.capacity));
        Self { overage: overage as u32, ..self }
    }

    /// Returns the limit that each of `parts` processes, from 1, may enforce without knowing of the others. Together,
    /// the shares never exceed the limit, if each of them can have a token. A queue lets one more request proceed in
    /// each process.
    pub(crate) fn share(self, parts: u32) -> Self {
        let [tokens, amount] = self.size();
        let share = share_of_tokens(tokens, parts);
        let whole = self.without_lease().without_expiry();
        let mut part = Self { overage: 0, ..whole };
        match &mut part.kind {
            _ if part.is_concurrency => {}
            Kind::Window(Some(calendar)) => {
                *calendar = calendar.with_every(share_of_period(tokens, calendar.every.into(), parts));
            }
            Kind::IntervalBucket => (part.amount, part.span) = share_of_refill(amount, whole.span, parts),
            Kind::Bucket(kind) => {
                (part.amount, part.span) = share_of_rate(amount, whole.span, parts);
                if let BucketKind::Queue { burst } = kind {
                    *burst /= parts;
                }
            }
            _ => part.span = share_of_period(tokens, whole.span, parts),
        }
        part.capacity = u64::from(share) + part.at_once();
        part
    }
}

/// As in error messages: `a fixed window of 3 per minute`.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.describe())
    }
}

/// Returns the largest whole share of `tokens` that each of `parts` processes can have, at least 1 unless there are none.
fn share_of_tokens(tokens: u32, parts: u32) -> u32 {
    (tokens / parts).max(tokens.min(1))
}

/// Returns the period of one of `parts` shares of `limit` tokens per `period`: if there is less than a token for each,
/// several whole periods, so that windows keep their boundaries and divide into as many buckets.
fn share_of_period(limit: u32, period: u64, parts: u32) -> u64 {
    period * u64::from(parts.div_ceil(limit.max(1))).min(LONGEST / period)
}

/// Returns one of `parts` shares of `amount` tokens per `interval` µs: exact, by a multiple of the interval, unless
/// that would exceed the longest interval. The interval is the same for all amounts, so that usage survives their
/// changes.
fn share_of_rate(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    let whole = u128::from(interval) * u128::from(parts);
    let shared = whole.min(LONGEST.into());
    let tokens = u128::from(amount) * shared / whole;
    ((tokens as u32).max(1), shared as u64)
}

/// Returns one of `parts` shares of a refill of `amount` tokens every `interval` µs: whole tokens, at an interval that
/// keeps the rate, rounded up to µs.
fn share_of_refill(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    let share = share_of_tokens(amount, parts);
    let interval = (u128::from(interval) * u128::from(share) * u128::from(parts)).div_ceil(amount.into());
    (share, interval.min(LONGEST.into()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_window_never_exceed_it() {
        let share = |limit, period, parts| (share_of_tokens(limit, parts), share_of_period(limit, period, parts));
        assert_eq!(share(10, 60, 1), (10, 60));
        assert_eq!(share(10, 60, 4), (2, 60));
        assert_eq!(share(3, 60, 4), (1, 120));
        assert_eq!(share(1, 60, 4), (1, 240));
        assert_eq!(share(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(share(1, LONGEST / 3 - 1, 4), (1, (LONGEST / 3 - 1) * 3));
    }

    #[test]
    fn shares_of_a_rate_are_exact() {
        assert_eq!(share_of_rate(10, 60, 1), (10, 60));
        assert_eq!(share_of_rate(10, 60, 4), (10, 240));
        assert_eq!(share_of_rate(7, 60, 4), (7, 240));
        assert_eq!(share_of_rate(8, LONGEST, 4), (2, LONGEST));
        assert_eq!(share_of_rate(7, LONGEST, 4), (1, LONGEST));
        assert_eq!(share_of_rate(u32::MAX, LONGEST, 2), (u32::MAX / 2, LONGEST));
        assert_eq!(share_of_rate(1, LONGEST, u32::MAX), (1, LONGEST));
    }

    #[test]
    fn shares_of_a_refill_keep_the_rate() {
        assert_eq!(share_of_refill(10, 60, 1), (10, 60));
        assert_eq!(share_of_refill(10, 60, 4), (2, 48));
        assert_eq!(share_of_refill(3, 60, 4), (1, 80));
        assert_eq!(share_of_refill(7, 10, 3), (2, 9));
        assert_eq!(share_of_refill(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(share_of_refill(u32::MAX, LONGEST, 1), (u32::MAX, LONGEST));
    }
}
