//! The part of a lease in the outcome of its limit: tokens that this process spends later, besides the cost.

use std::mem;

use super::charge::Veto;
use super::outcome::Outcome;
use crate::algorithm::{CompactState, KeyState, NEVER};

impl Outcome {
    /// Returns whether the request may be decided by leased tokens. Limits that count more than tokens are decided by the
    /// store.
    pub(crate) fn is_leasable(&self) -> bool {
        self.algorithm.term > 0
            && self.cost > 0
            && self.veto == Veto::Enforced
            && self.penalty().is_none()
            && !self.is_overridable
    }

    /// Sets how many tokens to take besides the cost, if the request is allowed: these, or a part of them.
    pub(crate) fn want_block(&mut self, tokens: u64) {
        self.details_mut().wanted_block = tokens;
    }

    /// Returns how many tokens to take besides the cost.
    pub(crate) fn wanted_block(&self) -> u64 {
        self.details.as_ref().map_or(0, |details| details.wanted_block)
    }

    /// Returns the tokens that were taken besides the cost, which are no longer a part of the outcome.
    pub(crate) fn take_out_block(&mut self) -> u64 {
        let Some(details) = &mut self.details else { return 0 };
        details.wanted_block = 0;
        let block = mem::take(&mut details.block);
        self.used -= block;
        block
    }

    /// Answers as a call has left the key at the instant `at`, brought forward by so many µs, if that denies the request.
    /// `mark` is the summary of the key.
    pub(crate) fn is_denied_by(&mut self, mark: CompactState, at: u64, elapsed: u64) -> bool {
        let mut state = KeyState::Compact(mark);
        self.peek(&state, at, false);
        let wait = self.wait;
        // The summary of a log tells only when the next token is free.
        if wait <= elapsed || self.algorithm.keeps_log() && self.cost > 1 {
            self.set_unanswered();
            return false;
        }
        // During the pause, nobody can take what is free again.
        self.peek(&state, at + elapsed.saturating_sub(self.algorithm.pause()), false);
        self.complete(&mut state, false);
        self.wait = if wait < NEVER { wait - elapsed } else { wait };
        true
    }

    /// Answers that the cost was taken from a block with this mark, of which so many tokens are left, at the instant `now`
    /// (in µs).
    #[inline]
    pub(crate) fn answer_by_block(&mut self, mark: CompactState, now: u64, left: u64) {
        (self.wait, self.now, self.mark) = (0, now, mark);
        self.used = KeyState::Compact(mark).used(&self.charge.algorithm, now).saturating_sub(left);
    }
}
