//! A counter per window, which begins and ends at fixed instants: multiples of a period, or the edges of a calendar.
//!
//! The state is the end of the window (`expires_at`), and its count (`detail`). A window keeps the end that it began
//! with. If the clock steps back behind it, it stays the current one.

use super::settings::{Algorithm, Kind};
use super::state::{Attempt, CompactState};

const SECOND: u64 = 1_000_000;

#[inline(always)]
pub(super) fn attempt(algorithm: &Algorithm, state: &CompactState, now: u64, cost: u64) -> Attempt {
    let used = used(state, now);
    if !algorithm.fits(used, cost) {
        return Attempt { used, charged: *state };
    }
    let expires_at = match algorithm.kind {
        _ if state.expires_at > now => state.expires_at,
        Kind::Window(Some(calendar)) => calendar.window((now / SECOND) as i64).1 as u64 * SECOND,
        _ => now - now % algorithm.span + algorithm.span,
    };
    Attempt { used, charged: CompactState { expires_at, at: 0, detail: used + cost } }
}

fn used(state: &CompactState, now: u64) -> u64 {
    if state.expires_at > now { state.detail } else { 0 }
}

#[inline(always)]
pub(super) fn wait(state: &CompactState, now: u64, most: u64) -> u64 {
    if used(state, now) > most { state.expires_at - now } else { 0 }
}

pub(super) fn refund(state: &mut CompactState, mark: CompactState, now: u64, cost: u64) {
    // A window that has ended stays as it is: the clock may step back into it.
    if state.expires_at == mark.expires_at && state.expires_at > now {
        state.detail = state.detail.saturating_sub(cost);
        if state.detail == 0 {
            *state = CompactState::UNUSED;
        }
    }
}
