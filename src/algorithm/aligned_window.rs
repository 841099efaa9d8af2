//! A counter per window, wherever windows begin and end.

use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};

/// A limit of tokens per window. The state is the end of a window, and its count.
pub(super) trait AlignedWindow {
    /// Returns the tokens allowed in a window.
    fn limit(&self) -> u64;

    /// Returns the end of the window that counts at `now`, and its count. If the clock has stepped back, that is the
    /// later window of the state.
    fn current(&self, state: &CompactState, now: u64) -> (u64, u64);
}

fn state(end: u64, count: u64) -> CompactState {
    if count == 0 { CompactState::UNUSED } else { CompactState { expires_at: end, at: 0, detail: count } }
}

fn snapshot(limit: u64, end: u64, count: u64, now: u64) -> QuotaSnapshot {
    if count == 0 {
        return QuotaSnapshot::unused(limit);
    }
    let left = end - now;
    QuotaSnapshot { remaining: limit.saturating_sub(count), more_after: Some(left), reset_after: left }
}

impl<W: AlignedWindow> RateAlgorithm<CompactState> for W {
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        let (end, count) = self.current(state, now);
        match self.limit().checked_sub(cost) {
            None => Availability::Never,
            Some(most) if count <= most => Availability::NOW,
            Some(_) => Availability::After(end - now),
        }
    }

    /// The mark is the state that the charge leaves.
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let (end, count) = self.current(state, now);
        *state = self::state(end, count + cost);
        (ChargeMark(*state), snapshot(self.limit(), end, count + cost, now))
    }

    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        let (end, count) = self.current(state, now);
        snapshot(self.limit(), end, count, now)
    }

    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        // A window that has ended stays as it is: the clock may step back into it.
        if state.expires_at == mark.0.expires_at && state.expires_at > now {
            *state = self::state(state.expires_at, state.detail.saturating_sub(cost));
        }
    }
}
