//! What is decided: the limits, each a pure function of what a key remembers, the instant and the
//! cost.
//!
//! | limit | admits at most | bytes a key | choose it for |
//! |---|---|---|---|
//! | [`TokenBucket`] | its capacity at once, its rate on average | 16 | APIs: bursts welcome, the average counts |
//! | [`FixedWindow`] | its limit in an aligned window, twice that across an edge | 16 | quotas: "10,000 a day" |
//! | [`CalendarWindow`] | the same, in days, weeks, months and years of a time zone | 16 | quotas that people are billed by: "10,000 a month" |
//! | [`SlidingWindowCounter`] | its limit in any period, if requests are evenly spread | 16 | a smoother window at the same price |
//! | [`SlidingWindow`] | its limit in any period less one bucket | 48, and 12 to 24 for each further bucket in use | windows without edges, as fine as you like |
//! | [`SlidingLog`] | its limit in any period, exactly | 48, and 12 to 24 for each further request in the period | small limits that must be exact: logins, payments |
//! | [`LeakyBucket`] | its capacity at once, its rate on average | 16 | a token bucket, seen as a level |
//! | [`LeakyBucketQueue`] | one at a time, at a constant rate | 16 | shaping: delays instead of denying |

mod calendar;
mod calendar_window;
mod civil;
mod drain;
mod fixed_window;
mod full;
mod leaky_bucket;
mod leaky_bucket_queue;
mod log;
mod penalty;
mod ratio;
mod rule;
mod shape;
mod share;
mod sliding_log;
mod sliding_window;
mod sliding_window_counter;
mod soft;
mod stamp;
mod token_bucket;
mod windows;
mod zone;

use std::fmt;
use std::time::Duration;

use calendar::Calendar;
pub use calendar::Weekday;
pub use calendar_window::CalendarWindow;
#[allow(unused_imports, reason = "for stores outside this process")]
pub(crate) use drain::Drain;
pub use fixed_window::FixedWindow;
#[allow(unused_imports, reason = "for stores outside this process")]
pub(crate) use full::Full;
pub use leaky_bucket::LeakyBucket;
pub use leaky_bucket_queue::LeakyBucketQueue;
pub(crate) use leaky_bucket_queue::Queue;
pub(crate) use log::Log;
#[allow(unused_imports, reason = "for stores outside this process")]
pub(crate) use log::Span;
pub use penalty::Penalty;
pub(crate) use penalty::Sentence;
pub(crate) use rule::{ByState, Rule};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use sliding_window_counter::{Rounding, SlidingWindowCounter};
pub(crate) use soft::Soft;
pub use token_bucket::{Refill, TokenBucket};

pub(crate) use crate::decision::{Room, Standing};
use crate::record::Record;
use crate::time::{self, Timestamp};

/// One of the limits, whichever it is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A counter for each aligned window.
    FixedWindow(FixedWindow),
    /// A counter for each window of a calendar.
    CalendarWindow(CalendarWindow),
    /// Every request of the last period.
    SlidingLog(SlidingLog),
    /// A counter for each part of the last period.
    SlidingWindow(SlidingWindow),
    /// A counter for this window and a weighted one for the window before.
    SlidingWindowCounter(SlidingWindowCounter),
    /// A bucket of tokens that fills up again.
    TokenBucket(TokenBucket),
    /// A bucket that leaks: the meter.
    LeakyBucket(LeakyBucket),
    /// A bucket that leaks: the queue.
    LeakyBucketQueue(LeakyBucketQueue),
}

/// Calls `$method` of the limit, whichever it is.
macro_rules! of_each {
    ($algorithm:expr, $limit:ident => $call:expr) => {
        match $algorithm {
            Algorithm::FixedWindow($limit) => $call,
            Algorithm::CalendarWindow($limit) => $call,
            Algorithm::SlidingLog($limit) => $call,
            Algorithm::SlidingWindow($limit) => $call,
            Algorithm::SlidingWindowCounter($limit) => $call,
            Algorithm::TokenBucket($limit) => $call,
            Algorithm::LeakyBucket($limit) => $call,
            Algorithm::LeakyBucketQueue($limit) => $call,
        }
    };
}

impl Algorithm {
    /// The largest cost, in tokens, that it can ever allow.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        of_each!(self, limit => limit.capacity())
    }

    /// The span over which [`capacity`](Self::capacity) is allowed: a window's period, or the time
    /// that an empty bucket takes to fill (a full one to drain). Of a [`CalendarWindow`] the longest, where no
    /// clocks are put back: 31 days for a month, 366 for a year.
    #[must_use]
    pub fn window(&self) -> Duration {
        time::micros(of_each!(self, limit => limit.window()))
    }

    /// The same at an instant: how long a [`CalendarWindow`]'s window is that holds it.
    #[must_use]
    pub fn window_at(&self, at: Timestamp) -> Duration {
        match self {
            Self::CalendarWindow(limit) => time::micros(limit.window_at(at.as_micros())),
            other => other.window(),
        }
    }

    /// What it is called where its keys are told from those of others, to which what it remembers means nothing.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fw",
            Self::CalendarWindow(_) => "cw",
            Self::SlidingLog(_) => "sl",
            Self::SlidingWindow(_) => "sw",
            Self::SlidingWindowCounter(_) => "sc",
            Self::TokenBucket(limit) => match limit.refills() {
                Refill::Continuous => "tb",
                Refill::Interval => "ti",
            },
            Self::LeakyBucket(_) => "lb",
            Self::LeakyBucketQueue(_) => "lq",
        }
    }

    /// To what that which it remembers refers.
    pub(crate) fn cycle(&self) -> Cycle {
        match self {
            Self::FixedWindow(limit) => Cycle::Micros(limit.cycle()),
            Self::CalendarWindow(limit) => Cycle::Calendar(limit.calendar()),
            Self::SlidingLog(limit) => Cycle::Micros(limit.cycle()),
            Self::SlidingWindow(limit) => Cycle::Parts(limit.cycle(), limit.parts()),
            Self::SlidingWindowCounter(limit) => Cycle::Micros(limit.cycle()),
            Self::TokenBucket(limit) => Cycle::Micros(limit.cycle()),
            Self::LeakyBucket(limit) => Cycle::Micros(limit.cycle()),
            Self::LeakyBucketQueue(limit) => Cycle::Micros(limit.cycle()),
        }
    }

    /// What one of `parts` nodes, from 1, may allow on its own.
    pub(crate) fn share(&self, parts: u32) -> Self {
        of_each!(self, limit => limit.share(parts).into())
    }

    /// The same with `percent` more capacity, rounded down to whole tokens: as far as there can be.
    pub(crate) fn raised(&self, percent: u32) -> Self {
        of_each!(self, limit => limit.raised(percent).into())
    }

    /// How many tokens it is about: all in which it differs from others of its kind and period.
    pub(crate) fn size(&self) -> Size {
        of_each!(self, limit => limit.size())
    }

    /// The same of another size, if it can have that.
    pub(crate) fn sized(&self, size: Size) -> Option<Self> {
        of_each!(self, limit => limit.sized(size).map(Into::into))
    }

    /// All of it, as an error tells it.
    pub(crate) fn text(&self) -> String {
        of_each!(self, limit => format!("{limit:?}"))
    }
}

/// A period or an interval, a period in so many parts, or a calendar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cycle {
    Micros(u64),
    Parts(u64, u32),
    Calendar(Calendar),
}

/// As names of keys have it: `60s`, `1500000u`, `3600s.10`, `m15.Europe/Berlin`.
impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Micros(micros) if micros % 1_000_000 == 0 => write!(f, "{}s", micros / 1_000_000),
            Self::Micros(micros) => write!(f, "{micros}u"),
            Self::Parts(micros, parts) => write!(f, "{}.{parts}", Self::Micros(*micros)),
            Self::Calendar(calendar) => write!(f, "{calendar}"),
        }
    }
}

/// A window's limit; a bucket's capacity and amount.
pub(crate) type Size = [u32; 2];

/// A limit over what a key remembers, `S`, whose default is a key that was never seen.
///
/// Instants and spans are µs. All is exact, and nothing panics for any state that `commit` and
/// `refund` can leave, at any instant up to [`Timestamp::MAX`](crate::Timestamp::MAX): clocks step
/// back. Time then stands still for a key, until the clock has caught up.
pub(crate) trait Exact<S> {
    /// Whether there is room for `cost`, which is at least 1.
    fn peek(&self, state: &S, now: u64, cost: u64) -> Room;

    /// Takes `cost`, for which there is room. Returns what a refund of it needs.
    fn commit(&self, state: &mut S, now: u64, cost: u64) -> Record;

    /// [`commit`](Self::commit), and what is left then.
    fn take(&self, state: &mut S, now: u64, cost: u64) -> (Record, Standing) {
        let mark = self.commit(state, now, cost);
        (mark, self.standing(state, now))
    }

    /// Takes `cost` if it is soon seen that there is room, and tells what room there was, what a refund needs, and what
    /// is left then. Otherwise nothing is changed, and [`settle`](Self::settle) takes a closer look.
    #[inline(always)]
    fn take_at_once(&self, state: &mut S, now: u64, cost: u64) -> Option<(Room, Record, Standing)> {
        let room = self.peek(state, now, cost);
        if !room.is_now() {
            return None;
        }
        let (mark, standing) = self.take(state, now, cost);
        Some((room, mark, standing))
    }

    /// Takes `cost` if there is room, and tells the same. Where there is none, it [adopts](Self::adopt) what there is.
    fn settle(&self, state: &mut S, now: u64, cost: u64) -> (Room, Record, Standing) {
        let room = self.peek(state, now, cost);
        if room.is_now() {
            let (mark, standing) = self.take(state, now, cost);
            return (room, mark, standing);
        }
        self.adopt(state, now);
        (room, Record::EMPTY, self.standing(state, now))
    }

    /// What is left.
    fn standing(&self, state: &S, now: u64) -> Standing;

    /// Notes that a decision which took nothing was made by this limit: what a key remembers may have been
    /// left by one of another rate.
    fn adopt(&self, _state: &mut S, _now: u64) {}

    /// Gives back as much of a `cost` that left `mark` as still counts.
    fn refund(&self, state: &mut S, mark: Record, now: u64, cost: u64);
}

macro_rules! into_algorithm {
    ($($name:ident),*) => {
        $(impl From<$name> for Algorithm {
            fn from(limit: $name) -> Self {
                Self::$name(limit)
            }
        })*
    };
}
into_algorithm!(
    FixedWindow,
    CalendarWindow,
    SlidingLog,
    SlidingWindow,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
    LeakyBucketQueue
);
