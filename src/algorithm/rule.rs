//! Decisions on a cost, which follow from the operations of a [`State`], once for all algorithms.

use super::settings::{Algorithm, Kind, Refill};
use super::state::{ChargeMark, CompactState, KeyState, State};
use super::{bucket, counter, interval_bucket, window};

/// Whether a cost can be charged, and if not, when. Spans are in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Availability {
    /// It is available. The request proceeds after `delay`.
    Now {
        delay: u64,
        /// Part of the cost exceeds the limit, and is taken from its overage.
        overage: bool,
    },
    /// It is available after this span, if nothing else is charged until then.
    After(u64),
    /// The cost exceeds the capacity.
    Never,
}

impl Availability {
    pub(crate) const NOW: Self = Self::Now { delay: 0, overage: false };

    pub(crate) const fn is_now(&self) -> bool {
        matches!(self, Self::Now { .. })
    }

    pub(crate) const fn is_after(&self) -> bool {
        matches!(self, Self::After(_))
    }
}

/// The state of a limit for one key at one instant. Spans are in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QuotaSnapshot {
    /// The largest cost that is available, in tokens.
    pub(crate) remaining: u64,
    /// The time until `remaining` grows, or `None` if it never does.
    pub(crate) more_after: Option<u64>,
    /// The time until the key is unused again.
    pub(crate) reset_after: u64,
}

/// The result of an algorithm's decision about a cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) availability: Availability,
    /// The mark of the charge, for a refund.
    pub(crate) mark: ChargeMark,
    /// The snapshot after the decision.
    pub(crate) snapshot: QuotaSnapshot,
}

impl Evaluation {
    /// Creates the evaluation of a cost that was not charged.
    #[inline]
    pub(crate) const fn uncharged(availability: Availability, snapshot: QuotaSnapshot) -> Self {
        Self { availability, mark: ChargeMark::NONE, snapshot }
    }
}

impl Algorithm {
    /// Returns whether `cost` can be charged. A cost of 0 always can.
    #[inline]
    pub(crate) fn availability<S: State + ?Sized>(&self, state: &S, now: u64, cost: u64) -> Availability {
        if cost == 0 {
            return Availability::NOW;
        }
        let Some(most) = self.hard_capacity().checked_sub(cost) else { return Availability::Never };
        match state.wait(self, now, most) {
            0 => Availability::Now {
                delay: if self.is_queue() { state.wait(self, now, 0) } else { 0 },
                overage: self.overage > 0 && state.used(self, now) + cost > self.capacity,
            },
            wait => Availability::After(wait),
        }
    }

    /// Returns the remaining tokens, without overage.
    #[inline]
    pub(crate) fn snapshot<S: State + ?Sized>(&self, state: &S, now: u64) -> QuotaSnapshot {
        let used = state.used(self, now).min(self.capacity);
        QuotaSnapshot {
            remaining: self.capacity - used,
            more_after: used.checked_sub(1).map(|less| state.wait(self, now, less)),
            reset_after: match self.is_bucket() {
                true => state.wait(self, now, 0),
                false => state.expires_at().saturating_sub(now),
            },
        }
    }

    /// Evaluates `cost` without charging it.
    pub(crate) fn evaluate<S: State + ?Sized>(&self, state: &S, now: u64, cost: u64) -> Evaluation {
        Evaluation::uncharged(self.availability(state, now, cost), self.snapshot(state, now))
    }

    /// Charges `cost` if it is available.
    #[inline]
    pub(crate) fn decide<S: State + ?Sized>(&self, state: &mut S, now: u64, cost: u64) -> Evaluation {
        let availability = self.availability(state, now, cost);
        let is_charged = availability.is_now() && cost > 0;
        let mark = if is_charged { state.charge(self, now, cost) } else { ChargeMark::NONE };
        Evaluation { availability, mark, snapshot: self.snapshot(state, now) }
    }
}

/// A new algorithm whose state is compact needs a kernel, and a line in each `match`.
impl State for CompactState {
    #[inline]
    fn expires_at(&self) -> u64 {
        self.expires_at
    }

    #[inline]
    fn used(&self, rule: &Algorithm, now: u64) -> u64 {
        match rule.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::used(rule, self, now),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => bucket::used(rule, self, now),
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::used(self, now),
            Kind::SlidingWindowCounter(_) => counter::used(rule, self, now),
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {rule:?} is a log"),
        }
    }

    #[inline]
    fn wait(&self, rule: &Algorithm, now: u64, most: u64) -> u64 {
        match rule.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::wait(rule, self, now, most),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => bucket::wait(rule, self, now, most),
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::wait(self, now, most),
            Kind::SlidingWindowCounter(_) => counter::wait(rule, self, now, most),
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {rule:?} is a log"),
        }
    }

    #[inline]
    fn charge(&mut self, rule: &Algorithm, now: u64, cost: u64) -> ChargeMark {
        match rule.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::charge(rule, self, now, cost),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => bucket::charge(rule, self, now, cost),
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::charge(rule, self, now, cost),
            Kind::SlidingWindowCounter(_) => counter::charge(rule, self, now, cost),
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {rule:?} is a log"),
        }
    }

    fn to_key_state(&self) -> KeyState {
        KeyState::Compact(*self)
    }

    fn refund(&mut self, rule: &Algorithm, mark: ChargeMark, now: u64, cost: u64) {
        match rule.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::refund(rule, self, mark, now, cost),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => {
                bucket::refund(rule, self, mark, now, cost);
            }
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::refund(self, mark, now, cost),
            Kind::SlidingWindowCounter(_) => counter::refund(rule, self, mark, now, cost),
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {rule:?} is a log"),
        }
    }
}
