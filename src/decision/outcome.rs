//! What one limit says of a request.

use std::fmt;
use std::time::Duration;

use super::verdict::Verdict;
use crate::algorithm::{Availability, ChargeMark, Lockout, QuotaSnapshot};
use crate::hash::KeyHash;
use crate::time;

/// What one limit says of a request.
#[derive(Clone)]
// It is moved about more often than it is read, so it is small, and all of it is words: a word that is
// copied right after a part of it was written stalls the processor. Spans become `Duration`s when asked for.
pub struct Outcome {
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) mark: ChargeMark,
    remaining: u64,
    /// The low 64 bits of each span, in µs.
    wait: u64,
    more_after: u64,
    reset_after: u64,
    /// Which limit it is, on whatever limiter: part of its hash.
    pub(crate) identity: u64,
    /// What else there is to say: see [`Rest`].
    rest: u64,
}

/// What of an outcome takes less than a word, and how it is packed into one: the limit's index (13 bits), whether its key
/// is under a penalty (1) and whether it reaches into overage (1), what the wait is (2), whether it is enforced (1),
/// whether more will be left (1), and the high bits of the three spans (15 each: none is longer than it takes to pay back
/// twice what a bucket can hold, under 2^79 µs).
#[derive(Clone, Copy)]
struct Rest {
    limit: u16,
    is_penalty: bool,
    is_over: bool,
    kind: u64,
    is_enforced: bool,
    grows: bool,
    high: [u64; 3],
}

/// The wait is a delay, the time until the request would be allowed, or nothing.
const NOW: u64 = 0;
const AFTER: u64 = 1;
const NEVER: u64 = 2;

const LIMIT: u16 = (1 << 13) - 1;
const PENALTY: u64 = 1 << 13;
const KIND: u64 = 3 << 15;
const ENFORCED: u64 = 1 << 17;
const HIGH: u64 = (1 << 15) - 1;

impl Rest {
    #[inline]
    fn pack(self) -> u64 {
        let [wait, more, reset] = self.high;
        let flags = u64::from(self.is_penalty) << 13
            | u64::from(self.is_over) << 14
            | u64::from(self.is_enforced) << 17
            | u64::from(self.grows) << 18;
        u64::from(self.limit) | flags | self.kind << 15 | wait << 19 | more << 34 | reset << 49
    }

    #[inline]
    fn unpack(packed: u64) -> Self {
        let high = [19, 34, 49].map(|from| packed >> from & HIGH);
        let is = |bit: u32| packed >> bit & 1 == 1;
        let limit = packed as u16 & LIMIT;
        Self {
            limit,
            is_penalty: is(13),
            is_over: is(14),
            kind: packed >> 15 & 3,
            is_enforced: is(17),
            grows: is(18),
            high,
        }
    }
}

/// Which limit was charged what, and whose bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) limit: u16,
    pub(crate) identity: u64,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) is_enforced: bool,
}

impl Outcome {
    /// One that says nothing.
    pub(super) const NONE: Self = Self {
        key: KeyHash::NONE,
        cost: 0,
        mark: ChargeMark::NONE,
        remaining: 0,
        wait: 0,
        more_after: 0,
        reset_after: 0,
        identity: 0,
        rest: 0,
    };

    /// How many limits it can tell from each other.
    pub(crate) const LIMITS: usize = LIMIT as usize + 1;

    #[inline]
    pub(crate) fn new(of: Subject, availability: Availability, mark: ChargeMark, snapshot: QuotaSnapshot) -> Self {
        let Subject { limit, identity, key, cost, is_enforced } = of;
        let QuotaSnapshot { remaining, more_after, reset_after } = snapshot;
        let (kind, wait, is_over) = match availability {
            Availability::Now { delay, overage } => (NOW, delay, overage),
            Availability::After(after) => (AFTER, after, false),
            Availability::Never => (NEVER, 0, false),
        };
        let (grows, more_after) = (more_after.is_some(), more_after.unwrap_or_default());
        let high = [wait, more_after, reset_after].map(|span| (span >> 64) as u64 & HIGH);
        Self {
            key,
            cost,
            mark,
            remaining,
            wait: wait as u64,
            more_after: more_after as u64,
            reset_after: reset_after as u64,
            identity,
            rest: Rest { limit, is_penalty: false, is_over, kind, is_enforced, grows, high }.pack(),
        }
    }

    /// The same of a key that is under a penalty, which it may have `begun`.
    #[cold]
    pub(crate) fn penalised(mut self, begun: Option<Lockout>) -> Self {
        self.rest |= PENALTY;
        // Nothing of it is taken that a mark could give back.
        self.mark = begun.map_or(self.mark, Lockout::to_mark);
        self
    }

    /// Says whether it counts for the decision.
    pub(crate) fn set_enforced(&mut self, is_enforced: bool) {
        self.rest = if is_enforced { self.rest | ENFORCED } else { self.rest & !ENFORCED };
    }

    /// The refusal that it begins, if it does.
    pub(crate) fn begun(&self) -> Option<Lockout> {
        if self.is_penalty() && !self.is_allowed() { Lockout::from_mark(self.mark) } else { None }
    }

    /// Whether it alone has room.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        Rest::unpack(self.rest).kind == NOW
    }

    /// Whether it denies the request.
    #[inline]
    pub(crate) fn denies(&self) -> bool {
        // At once, as it is asked of each: enforced, and no delay.
        self.rest & (ENFORCED | KIND) > ENFORCED
    }

    #[inline]
    pub(crate) fn availability(&self) -> Availability {
        let Rest { kind, is_over, high: [high, ..], .. } = Rest::unpack(self.rest);
        let wait = whole(high, self.wait);
        match kind {
            NOW => Availability::Now { delay: wait, overage: is_over },
            AFTER => Availability::After(wait),
            _ => Availability::Never,
        }
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> QuotaSnapshot {
        let Rest { grows, high: [_, more, reset], .. } = Rest::unpack(self.rest);
        QuotaSnapshot {
            remaining: self.remaining,
            more_after: grows.then(|| whole(more, self.more_after)),
            reset_after: whole(reset, self.reset_after),
        }
    }

    /// Which limit: its position among the limits that were given to the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        usize::from(Rest::unpack(self.rest).limit)
    }

    /// What the request was to take from this limit, in tokens.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether this limit alone had room. One that is [not enforced](Self::is_enforced) says what it would
    /// have done.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.availability().into()
    }

    /// Whether the limit counts for the [decision](crate::Decision::verdict): one in the
    /// [shadow](crate::Limit::shadow) does not. Of those in [quota mode](crate::Limit::quota_mode), each that has room
    /// counts; if none has, the first that will have room counts alone.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        Rest::unpack(self.rest).is_enforced
    }

    /// Whether the key is under a [`Penalty`](crate::Penalty) of the limit: refused for a while, whatever room
    /// there is. Of the request that begins it, too. What costs nothing is allowed all the same.
    #[must_use]
    #[inline]
    pub fn is_penalty(&self) -> bool {
        self.rest & PENALTY != 0
    }

    /// Whether there was only room in the limit's overage: see [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn uses_overage(&self) -> bool {
        Rest::unpack(self.rest).is_over
    }

    /// The largest cost, in tokens, that this limit would still allow at this instant, after the
    /// request was decided. Overage does not count.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The shortest wait after which [`remaining`](Self::remaining) is larger, if nothing more
    /// comes. `None` where it won't grow.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        self.snapshot().more_after.map(time::micros)
    }

    /// How long until it is as if this limit had never been used, if nothing more comes.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        time::micros(self.snapshot().reset_after)
    }
}

#[inline]
fn whole(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("limit", &self.limit())
            .field("cost", &self.cost)
            .field("verdict", &self.verdict())
            .field("enforced", &self.is_enforced())
            .field("uses_overage", &self.uses_overage())
            .field("penalty", &self.is_penalty())
            .field("remaining", &self.remaining)
            .field("more_after", &self.more_after())
            .field("reset_after", &self.reset_after())
            .finish_non_exhaustive()
    }
}
