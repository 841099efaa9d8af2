//! Who is denied too often is refused for a while, longer each time.

use std::time::Duration;

use super::{Room, Standing};
use crate::error::{ConfigError, Fault};
use crate::quota::{self, checked};
use crate::record::Record;
use crate::time;

/// Refuses whoever a limit has denied too often, for a while, and each time for longer:
/// [`Limit::penalty`](crate::Limit::penalty) takes it.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Limit, Penalty, SlidingLog, key};
///
/// // Who is denied five times within a minute is refused for a minute, then for two, up to a day.
/// let penalty = Penalty::after(5, Duration::from_secs(60))
///     .refused_for(Duration::from_secs(60))
///     .doubling_up_to(Duration::from_secs(86_400));
/// let logins = Limit::new("logins", SlidingLog::per_minute(10)).by(key::peer_ip()).penalty(penalty);
/// # let _ = logins;
/// ```
///
/// # What it decides, exactly
///
/// For each key of the limit, to the microsecond, on every store. n: the denials. W: the span within which
/// they count. B and M: how long the first and the longest refusal are. Q: how long a refusal is remembered
/// after its end: as long as it was, unless [`remembered_for`](Self::remembered_for) says otherwise.
///
/// - **Strike**: a request that the limit denies, which costs it at least 1, while the key is not refused.
///   A request that only other limits deny is none, nor is a peek. Whether a wait could have helped does
///   not matter. A route that charges a request anew makes one strike of it, a handler that
///   [charges it more](crate::Permit::charge) one each time; [settling](crate::Permit::settle) and
///   [waiting](crate::Limiter::wait) make none.
/// - **Span**: it begins with a strike that is in no other, at t. Strikes in `[t, t + W)` count together.
/// - **Refusal**: the n-th strike of a span, at t, begins one of the next level, which is 1 if no earlier
///   one is remembered. At level k it is L = min(B·2^(k − 1), M) long: all requests in `[t, t + L)`
///   are denied, the n-th strike itself with them, at t + L no more for this. None of them is a strike, and
///   none makes it longer. The strikes before it are forgotten.
/// - **Memory**: the level is remembered until t + L + Q; a refusal that begins from then on is of level 1.
///
/// While a key is refused, `remaining` is 0, and `retry_after` is the time to the end of the refusal, or
/// longer if the limit itself says so. `reset_after` is when strikes and level are forgotten too. A cost of 0
/// is allowed, as ever. A request that is refused takes nothing from other limits, and one that others deny
/// leaves the penalty as it is, unless this limit denies it too.
///
/// What a key holds is 16 bytes in memory, a key of its own in Redis, read and written by the same script as
/// the limit's; a limit without a penalty costs nothing more. [`Limiter::reset`](crate::Limiter::reset) and
/// [`Permit::reset`](crate::Permit::reset) forget it; what is given back of a charge changes nothing of it.
/// Limits that share what their keys have used share refusals too, if they have a penalty. With another size
/// of the same algorithm and period, a key stays refused; with other settings of the penalty, what is there
/// counts on, and later strikes go by the new ones. A limit in the [shadow](crate::Limit::shadow) has none.
///
/// A clock that steps back shortens no refusal. A store in memory at its
/// [`max_keys`](crate::MemoryStore::max_keys) evicts strikes and refusals like the state of a key that was
/// denied: among denied keys, those that expire first are evicted first, so choose a span that is not much
/// shorter than the periods of the limits beside it. Strikes never displace what the same request has used; a
/// store with no room for both counts none.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[must_use]
pub struct Penalty {
    pub(crate) denials: u16,
    pub(crate) within: u64,
    pub(crate) first: u64,
    pub(crate) longest: Option<u64>,
    pub(crate) kept: Option<u64>,
}

/// A refusal that a strike has begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sentence {
    pub(crate) level: u64,
    /// In µs.
    pub(crate) span: u64,
}

const MOST_DENIALS: u32 = 1_000;

impl Penalty {
    /// After so many denials, 1 to 1,000, within a span of 1 µs to 366 days; for as long as that span,
    /// unless [`refused_for`](Self::refused_for) says otherwise.
    ///
    /// # Panics
    ///
    /// When one is out of its range; at compile time in a constant. [`try_after`](Self::try_after) returns
    /// an error instead.
    #[track_caller]
    pub const fn after(denials: u32, within: Duration) -> Self {
        checked!(Self::checked_after(denials, within))
    }

    /// Like [`after`](Self::after), for values that are not known to be right.
    ///
    /// # Errors
    ///
    /// When one is out of its range, or the span is not whole microseconds.
    pub fn try_after(denials: u32, within: Duration) -> Result<Self, ConfigError> {
        Ok(Self::checked_after(denials, within)?)
    }

    const fn checked_after(denials: u32, within: Duration) -> Result<Self, Fault> {
        if denials == 0 || denials > MOST_DENIALS {
            return Err(Fault::Denials { denials });
        }
        match quota::span("a penalty's span", within) {
            Ok(within) => Ok(Self { denials: denials as u16, within, first: within, longest: None, kept: None }),
            Err(fault) => Err(fault),
        }
    }

    /// How long a key is refused, from 1 µs to 366 days.
    ///
    /// # Panics
    ///
    /// When it is out of its range, or longer than what it [doubles up to](Self::doubling_up_to); at compile
    /// time in a constant. [`try_refused_for`](Self::try_refused_for) returns an error instead.
    #[track_caller]
    pub const fn refused_for(self, span: Duration) -> Self {
        checked!(self.checked_refused_for(span))
    }

    /// Like [`refused_for`](Self::refused_for), for a span that is not known to be right.
    ///
    /// # Errors
    ///
    /// When it is out of its range, not whole microseconds, or longer than what it doubles up to.
    pub fn try_refused_for(self, span: Duration) -> Result<Self, ConfigError> {
        Ok(self.checked_refused_for(span)?)
    }

    const fn checked_refused_for(mut self, span: Duration) -> Result<Self, Fault> {
        match quota::span("a refusal", span) {
            Ok(first) => self.first = first,
            Err(fault) => return Err(fault),
        }
        self.in_order()
    }

    /// Refuses for twice as long each time, up to a span of 366 days at most.
    ///
    /// # Panics
    ///
    /// When the span is out of its range, or shorter than the first refusal; at compile time in a constant.
    /// [`try_doubling_up_to`](Self::try_doubling_up_to) returns an error instead.
    #[track_caller]
    pub const fn doubling_up_to(self, longest: Duration) -> Self {
        checked!(self.checked_doubling_up_to(longest))
    }

    /// Like [`doubling_up_to`](Self::doubling_up_to), for a span that is not known to be right.
    ///
    /// # Errors
    ///
    /// When the span is out of its range, not whole microseconds, or shorter than the first refusal.
    pub fn try_doubling_up_to(self, longest: Duration) -> Result<Self, ConfigError> {
        Ok(self.checked_doubling_up_to(longest)?)
    }

    const fn checked_doubling_up_to(mut self, longest: Duration) -> Result<Self, Fault> {
        match quota::span("the longest refusal", longest) {
            Ok(longest) => self.longest = Some(longest),
            Err(fault) => return Err(fault),
        }
        self.in_order()
    }

    /// How long after its end a refusal is remembered, so that the next one is longer: from 1 µs to 366
    /// days; as long as the refusal was, unless this says otherwise.
    ///
    /// # Panics
    ///
    /// When it is out of its range; at compile time in a constant.
    /// [`try_remembered_for`](Self::try_remembered_for) returns an error instead.
    #[track_caller]
    pub const fn remembered_for(self, span: Duration) -> Self {
        checked!(self.checked_remembered_for(span))
    }

    /// Like [`remembered_for`](Self::remembered_for), for a span that is not known to be right.
    ///
    /// # Errors
    ///
    /// When it is out of its range, or not whole microseconds.
    pub fn try_remembered_for(self, span: Duration) -> Result<Self, ConfigError> {
        Ok(self.checked_remembered_for(span)?)
    }

    const fn checked_remembered_for(mut self, span: Duration) -> Result<Self, Fault> {
        match quota::span("how long a refusal is remembered", span) {
            Ok(kept) => self.kept = Some(kept),
            Err(fault) => return Err(fault),
        }
        Ok(self)
    }

    const fn in_order(self) -> Result<Self, Fault> {
        match self.longest {
            Some(longest) if longest < self.first => {
                let [longest, first] = [Duration::from_micros(longest), Duration::from_micros(self.first)];
                Err(Fault::Doubling { first, longest })
            }
            _ => Ok(self),
        }
    }

    /// How long a refusal of `level`, from 1, is.
    fn span(&self, level: u64) -> u64 {
        let doubled = u128::from(self.first) << (level - 1).min(MOST_DOUBLINGS);
        doubled.min(self.longest.unwrap_or(self.first).into()) as u64
    }

    /// How long a key is refused yet, in µs: 0, if it is not.
    pub(crate) fn left(record: &Record, now: u64) -> u64 {
        Past::of(record).refused_until.saturating_sub(now)
    }

    /// Notes a denial of a key that is not refused. Returns the refusal that it begins, if it does.
    pub(crate) fn strike(&self, record: &mut Record, now: u64) -> Option<Sentence> {
        let past = Past::of(record);
        let strikes = if now < past.counted_until { past.strikes + 1 } else { 1 };
        let counted_until = if strikes > 1 { past.counted_until } else { now + self.within };
        let level = if now < past.known_until { past.level } else { 0 };
        if strikes < self.denials.into() {
            *record = Past { strikes, counted_until, level, known_until: past.known_until, refused_until: 0 }.record();
            return None;
        }
        let level = (level + 1).min(MOST_LEVEL);
        let span = self.span(level);
        let refused_until = now + span;
        let known_until = refused_until + self.kept.unwrap_or(span);
        *record = Past { strikes: 0, counted_until: 0, level, known_until, refused_until }.record();
        Some(Sentence { level, span })
    }

    /// What room of a limit there is for a cost of at least 1.
    pub(crate) fn room(record: &Record, now: u64, room: Room) -> Room {
        match (u128::from(Self::left(record, now)), room) {
            (0, room) | (_, room @ Room::Never) => room,
            (left, Room::After(wait)) => Room::After(wait.max(left)),
            (left, Room::Now { .. }) => Room::After(left),
        }
    }

    /// What of what is left of a limit there is, and when all is forgotten.
    pub(crate) fn standing(record: &Record, now: u64, limit: Standing) -> Standing {
        let reset_after = limit.reset_after.max(record.until.saturating_sub(now).into());
        match u128::from(Self::left(record, now)) {
            0 => Standing { reset_after, ..limit },
            left => {
                let more_after = if limit.remaining > 0 { Some(0) } else { limit.more_after };
                Standing { remaining: 0, more_after: more_after.map(|after| after.max(left)), reset_after }
            }
        }
    }
}

/// Twice as many µs as 366 days have are never reached by more.
const MOST_DOUBLINGS: u64 = 45;

/// What a record says. `until` is when all of it is forgotten; `detail` holds the strikes (10 bits), the
/// level (6), which of two instants is `until` (1), and how far before it the other is (47). They are the
/// end of a refusal, or of a span of strikes, and the end of a level's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    strikes: u64,
    /// When strikes are forgotten, if there are any.
    counted_until: u64,
    level: u64,
    /// When the level is forgotten.
    known_until: u64,
    refused_until: u64,
}

const MOST_LEVEL: u64 = (1 << 6) - 1;
/// Reached only by a clock that steps back by years: strikes then count for longer.
const MOST_APART: u64 = (1 << 47) - 1;
const LEVEL_IS_KNOWN_LONGER: u64 = 1 << 47;

impl Past {
    fn of(record: &Record) -> Self {
        let Record { until, detail } = *record;
        let (strikes, level) = (detail >> 54, detail >> 48 & MOST_LEVEL);
        let other = until.saturating_sub(detail & MOST_APART);
        match (strikes, level) {
            (0, 0) => Self::default(),
            (0, _) => Self { level, known_until: until, refused_until: other, ..Self::default() },
            _ if detail & LEVEL_IS_KNOWN_LONGER == 0 => {
                Self { strikes, counted_until: until, level, known_until: other, refused_until: 0 }
            }
            _ => Self { strikes, counted_until: other, level, known_until: until, refused_until: 0 },
        }
    }

    fn record(self) -> Record {
        let Self { strikes, counted_until, level, known_until, refused_until } = self;
        let (until, apart) = match (strikes, level) {
            (0, _) => (known_until, known_until - refused_until),
            (_, 0) => (counted_until, 0),
            _ if known_until > counted_until => {
                (known_until, (known_until - counted_until).min(MOST_APART) | LEVEL_IS_KNOWN_LONGER)
            }
            _ => (counted_until, (counted_until - known_until).min(MOST_APART)),
        };
        Record { until, detail: strikes << 54 | level << 48 | apart }
    }
}

impl Sentence {
    /// As an outcome keeps it.
    pub(crate) fn record(self) -> Record {
        Record { until: self.span, detail: self.level }
    }

    pub(crate) fn of(record: &Record) -> Option<Self> {
        (record.detail > 0).then_some(Self { level: record.detail, span: record.until })
    }

    pub(crate) fn duration(self) -> Duration {
        time::micros(self.span.into())
    }
}
