//! The operations of every algorithm on the state of a key, and their results.

use super::state::ChargeMark;

/// A limit's decisions on the state of one key, `S`, whose default is an unused key.
///
/// Instants and spans are µs, and all arithmetic is exact. No method panics on a state that `commit` and `refund`
/// have produced, at any instant up to [`Timestamp::MAX`](crate::Timestamp::MAX). Clocks may step back:
/// time then stands still for a key until the clock has caught up.
pub(crate) trait RateAlgorithm<S> {
    /// Returns whether `cost`, which is at least 1, can be charged.
    fn peek(&self, state: &S, now: u64, cost: u64) -> Availability;

    /// Charges `cost`, which [`peek`](Self::peek) has found to be available. Returns the mark for a refund, and the
    /// remaining tokens.
    fn commit(&self, state: &mut S, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot);

    /// Returns the remaining tokens.
    fn snapshot(&self, state: &S, now: u64) -> QuotaSnapshot;

    /// Refunds a charge of `cost`, as far as it still counts.
    fn refund(&self, state: &mut S, mark: ChargeMark, now: u64, cost: u64);

    /// Charges `cost`, which is at least 1, if it is available.
    #[inline]
    fn decide(&self, state: &mut S, now: u64, cost: u64) -> Evaluation {
        let availability = self.peek(state, now, cost);
        if availability.is_now() {
            let (mark, snapshot) = self.commit(state, now, cost);
            return Evaluation { availability, mark, snapshot };
        }
        Evaluation::uncharged(availability, self.snapshot(state, now))
    }
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

impl QuotaSnapshot {
    /// Returns the snapshot of an unused key.
    pub(crate) const fn unused(capacity: u64) -> Self {
        Self { remaining: capacity, more_after: None, reset_after: 0 }
    }
}
