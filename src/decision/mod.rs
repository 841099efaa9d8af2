//! Decisions about requests, and their parts, wherever the states of keys are stored.

mod charge;
mod charges;
mod decide;
mod decided_by;
mod outcome;
mod outcome_lease;
mod outcome_penalty;
mod penalty;
mod verdict;

use std::ops::Deref;
use std::time::Duration;

pub use self::charge::{Charge, Veto};
pub use self::charges::Charges;
pub(crate) use self::charges::Texts;
pub use self::decide::Purpose;
#[cfg(feature = "redis")]
pub(crate) use self::decide::{allows, enforce_quotas};
pub(crate) use self::decide::{complete, decide};
pub use self::decided_by::DecidedBy;
pub use self::outcome::{Outcome, OutcomeKind};
pub(crate) use self::penalty::PenaltyOutcome;
pub use self::verdict::Verdict;
use crate::time::{Clock, SystemClock, Timestamp};

/// The decision on one request, by all limits that apply to it, at one instant.
#[derive(Clone, Debug)]
#[must_use = "it may deny the request: check `is_allowed`, or use a method that returns an error for a denial"]
pub struct Decision {
    at: Timestamp,
    by: DecidedBy,
    /// Whether the request was charged if it was allowed.
    takes: bool,
    /// The [identity](crate::Store::identity) of the limiter's store.
    store: u32,
    charges: Charges,
}

impl Decision {
    /// Creates the decision that a limiter makes of a store's answer at an instant, for stores that wrap others and
    /// report their decisions.
    pub fn new(at: Timestamp, charges: Charges) -> Self {
        Self::of(at, DecidedBy::Store, false, 0, charges)
    }

    /// Creates the decision of answered charges. The request is charged if it is allowed and `takes`.
    #[inline(always)]
    pub(crate) const fn of(at: Timestamp, by: DecidedBy, takes: bool, store: u32, charges: Charges) -> Self {
        Self { at, by, takes, store, charges }
    }

    /// Creates the decision about a request to which no limit applies, or about which the store did not decide.
    pub(crate) fn unlimited() -> Self {
        Self::of(SystemClock::new().now(), DecidedBy::Unlimited, false, 0, Charges::default())
    }

    /// Returns a copy that cannot be refunded.
    pub(crate) fn without_charges(&self) -> Self {
        Self { takes: false, ..self.clone() }
    }

    /// Returns the decision on a part of its charges, with their costs.
    pub(crate) fn part(&self, asked: &Charges) -> Self {
        if asked.is_empty() {
            return Self::unlimited();
        }
        let mut charges = asked.select([]);
        for charge in asked.iter() {
            if let Some(decided) = self.outcomes().iter().find(|known| known.fingerprint() == charge.fingerprint()) {
                let mut outcome = decided.clone();
                outcome.charge.cost = charge.cost;
                charges.push(outcome);
            }
        }
        Self { takes: self.is_charged(), charges, ..*self }
    }

    /// Keeps the outcomes of some limits only.
    pub(crate) fn only(mut self, is_kept: impl Fn(usize) -> bool) -> Self {
        self.charges.retain(|outcome| is_kept(outcome.limit()));
        self
    }

    /// Returns the part of the limiter that decided.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.by
    }

    /// Returns the instant of the decision: on the clock of the store, or on the system clock if no limit applied or
    /// this process decided because the store failed. In memory, on the wall clock if a calendar window applied.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the combined verdict of all limits that are enforced.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let enforced = self.outcomes().iter().filter(|outcome| outcome.is_enforced());
        enforced.map(Outcome::verdict).reduce(Verdict::and).unwrap_or(Verdict::NOW)
    }

    /// Returns whether every limit that is enforced had capacity.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        !self.outcomes().iter().any(Outcome::denies)
    }

    /// Returns whether the request is allowed without a delay.
    #[inline]
    pub(crate) fn is_allowed_now(&self) -> bool {
        self.outcomes().iter().all(Outcome::allows_now)
    }

    /// Returns whether the request was denied because one of its keys is locked out by a [`Penalty`](crate::Penalty),
    /// including the request that began the lockout.
    #[must_use]
    pub fn is_locked_out(&self) -> bool {
        self.outcomes().iter().any(|outcome| outcome.denies() && outcome.is_locked_out())
    }

    /// Returns whether the request was charged.
    pub(crate) fn is_charged(&self) -> bool {
        self.takes && self.is_allowed()
    }

    /// Returns the largest cost that the limits would allow together, with their overage.
    pub(crate) fn available(&self) -> u64 {
        let of = |veto| self.outcomes().iter().filter(move |outcome| outcome.veto == veto).map(Outcome::available);
        of(Veto::Enforced).chain(of(Veto::Quota).max()).min().unwrap_or(u64::MAX)
    }

    /// Returns how long an allowed request waits before it proceeds: the longest delay of all limits. Zero for a denied
    /// request.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.verdict().delay()
    }

    /// Returns the shortest wait after which a denied request would be allowed if no other request arrived: the longest
    /// of the limits that deny it. `None` if the request was allowed, or if waiting cannot help.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() { None } else { self.verdict().retry_after() }
    }

    /// Returns the outcome of each limit, in the order of the limits.
    #[must_use]
    #[inline]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.charges
    }

    /// Returns the outcome of a limit.
    pub(crate) fn outcome(&self, limit: usize) -> Option<&Outcome> {
        self.outcomes().iter().find(|outcome| outcome.limit() == limit)
    }

    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        &mut self.charges
    }

    pub(crate) fn charges(&self) -> &Charges {
        &self.charges
    }

    /// Returns the receipt that the costs would have if they had been charged at the instant of this decision, which
    /// charged nothing.
    pub(crate) fn into_receipt_of_costs(mut self) -> Receipt {
        self.charges.retain(|outcome| outcome.cost > 0);
        for slot in self.charges.iter_mut().filter(|outcome| outcome.algorithm.is_concurrency) {
            // From the oldest bucket, which expires first.
            slot.mark.expires_at = slot.mark.at;
        }
        Receipt { by: self.by, store: self.store, charged: self.charges }
    }

    /// Returns the receipt of the request's charges, which is empty if it was not charged.
    pub fn into_receipt(mut self) -> Receipt {
        let is_charged = self.is_charged();
        self.charges.retain(|outcome| is_charged && outcome.cost > 0 && outcome.is_allowed());
        Receipt { by: self.by, store: self.store, charged: self.charges }
    }
}

/// A [`Decision`] that allows the request. There is nothing to check, so it need not be used.
///
/// Returned by methods that return an error for a denial, such as [`Limiter::try_acquire`](crate::Limiter::try_acquire)
/// and [`Limiter::wait`](crate::Limiter::wait). It dereferences to the decision.
#[derive(Clone, Debug)]
pub struct AllowedDecision(pub(crate) Decision);

impl AllowedDecision {
    /// Returns the receipt of the request's charges. See [`Decision::into_receipt`].
    pub fn into_receipt(self) -> Receipt {
        self.0.into_receipt()
    }
}

impl Deref for AllowedDecision {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

/// The record of the charges of a decision. It can be refunded exactly and once.
///
/// A refund returns only the part of the charge that still counts: it never leaves more tokens than the limit has, and
/// never affects a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped refunds nothing: pass it to `refund`"]
pub struct Receipt {
    /// The part of the limiter that made the charge.
    pub(crate) by: DecidedBy,
    /// The [identity](crate::Store::identity) of the limiter's store.
    pub(crate) store: u32,
    pub(crate) charged: Charges,
}

impl Receipt {
    /// Returns whether there is nothing to refund.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged.is_empty()
    }
}
