//! The part of a penalty in the outcome of its limit.

use super::charge::Charge;
use super::outcome::Outcome;
use super::penalty::{PenaltyOutcome, Strike};
use crate::algorithm::{CompactState, Lockout};

impl Outcome {
    /// Creates the outcome of a charge that is not answered yet. Its limit may have a penalty.
    pub(crate) fn new(charge: Charge, penalty: Option<PenaltyOutcome>) -> Self {
        let mut outcome = Self::from(charge);
        if penalty.is_some() {
            outcome.details_mut().penalty = penalty;
        }
        outcome
    }

    /// Returns the outcome of the same charge without an answer.
    pub(crate) fn unanswered(&self) -> Self {
        let mut outcome = Self::new(self.charge, self.penalty().map(PenaltyOutcome::unanswered));
        outcome.debt_percent = self.debt_percent;
        if self.wanted_block() > 0 {
            outcome.want_block(self.wanted_block());
        }
        outcome
    }

    /// Returns the penalty of the limit.
    #[inline]
    pub(crate) fn penalty(&self) -> Option<&PenaltyOutcome> {
        self.details.as_ref()?.penalty.as_ref()
    }

    fn penalty_mut(&mut self) -> Option<&mut PenaltyOutcome> {
        self.details.as_mut()?.penalty.as_mut()
    }

    /// Excludes a denial by the limit from strikes.
    pub(crate) fn disable_strikes(&mut self) {
        if let Some(penalty) = self.penalty_mut() {
            penalty.makes_strikes = false;
        }
    }

    /// Looks at the state of the key under the penalty, after a [`peek`](Self::peek) at that under the limit.
    #[cold]
    pub(crate) fn peek_penalty(&mut self, state: CompactState, now: u64) {
        let wait = self.wait;
        let Some(penalty) = self.penalty_mut() else { return };
        (penalty.state, penalty.now, penalty.limit_wait) = (state, now, wait);
        let is_strike = penalty.makes_strikes && wait > 0 && penalty.left() == 0;
        penalty.strike = if is_strike { Strike::Due } else { Strike::No };
        self.apply_lockout();
    }

    /// Counts the strike, if the denial is one.
    #[cold]
    pub(super) fn strike(&mut self) {
        if let Some(penalty) = self.penalty_mut().filter(|penalty| penalty.strike == Strike::Due) {
            penalty.state = penalty.penalty.strike(&penalty.state, penalty.now);
            penalty.strike = Strike::Counted;
            let begun = Lockout::begun(&penalty.state, penalty.now);
            self.details_mut().lockout = begun;
            self.apply_lockout();
        }
    }

    /// Takes back the first strike of a key, for which a store has no room.
    pub(crate) fn undo_strike(&mut self) {
        let Some(penalty) = self.penalty_mut() else { return };
        (penalty.state, penalty.strike) = (CompactState::UNUSED, Strike::Due);
        (self.wait, self.is_locked_out) = (penalty.limit_wait, false);
        self.details_mut().lockout = None;
    }

    /// Denies the request if the key is locked out. A cost of 0 is always allowed.
    fn apply_lockout(&mut self) {
        let left = self.lockout_left();
        self.is_locked_out = left > 0;
        if self.cost > 0 {
            self.wait = self.wait.max(left);
        }
    }

    /// Returns the state of the key after a strike that was counted.
    pub(crate) fn struck(&self) -> Option<CompactState> {
        self.penalty().filter(|penalty| penalty.strike == Strike::Counted).map(|penalty| penalty.state)
    }

    /// Returns whether the limit denies the request by itself, and its penalty counts that.
    pub(crate) fn is_strike(&self) -> bool {
        let counts = |penalty: &PenaltyOutcome| penalty.makes_strikes && penalty.strike != Strike::No;
        !self.is_allowed() && self.penalty().is_some_and(counts)
    }

    /// Returns whether the limit denies a request that is not locked out, even if so many tokens were not in use.
    pub(crate) fn denies_without(&self, tokens: u64) -> bool {
        let used = self.used.saturating_sub(tokens);
        self.penalty().is_some_and(|penalty| penalty.limit_wait > 0 && penalty.left() == 0)
            && used.saturating_add(self.cost) > self.algorithm.hard_capacity()
    }

    /// Returns the wait by the limit alone, whether or not the key is locked out.
    #[inline]
    pub(crate) fn limit_wait(&self) -> u64 {
        self.penalty().map_or(self.wait, |penalty| penalty.limit_wait)
    }

    /// Returns how long the key is locked out, in µs, or 0.
    pub(crate) fn lockout_left(&self) -> u64 {
        self.penalty().map_or(0, PenaltyOutcome::left)
    }

    /// Returns the lockout that the request has begun, if any.
    pub(crate) fn lockout(&self) -> Option<Lockout> {
        self.details.as_ref()?.lockout
    }
}
