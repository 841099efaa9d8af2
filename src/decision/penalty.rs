//! What a request asks of the penalty of a limit, and what came of it.

use crate::algorithm::{CompactState, Penalty};

/// The penalty of a limit, for the key of a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PenaltyOutcome {
    pub(crate) penalty: Penalty,
    /// Whether a denial by the limit is a strike.
    pub(crate) makes_strikes: bool,
    pub(super) strike: Strike,
    /// The wait by the limit alone.
    pub(super) limit_wait: u64,
    /// The instant of the decision, in µs.
    pub(super) now: u64,
    /// The state of the key after the decision.
    pub(crate) state: CompactState,
}

/// Whether a denial is a strike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Strike {
    /// It is none: the key is locked out, or the request makes no strikes.
    No,
    /// It would be one, or no store has looked.
    Due,
    /// It was counted.
    Counted,
}

impl PenaltyOutcome {
    /// Creates the outcome of a penalty that no store has looked at.
    pub(crate) fn new(penalty: Penalty) -> Self {
        let (strike, state) = (Strike::Due, CompactState::UNUSED);
        Self { penalty, makes_strikes: true, strike, limit_wait: 0, now: 0, state }
    }

    /// Returns the outcome of an equal question, without an answer.
    pub(super) fn unanswered(&self) -> Self {
        Self { makes_strikes: self.makes_strikes, ..Self::new(self.penalty) }
    }

    /// Returns how long the key is still locked out, in µs.
    pub(super) fn left(&self) -> u64 {
        Penalty::lockout_left(&self.state, self.now)
    }

    /// Returns how long until the penalty has forgotten the key, in µs.
    pub(super) fn forgotten_after(&self) -> u64 {
        self.state.expires_at.saturating_sub(self.now)
    }
}
