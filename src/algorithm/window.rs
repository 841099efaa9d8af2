//! A counter per window, which begins and ends at fixed instants: multiples of a period, or the edges of a calendar.
//!
//! The state is the end of the window (`expires_at`), and its count (`detail`). A window keeps the end that it began
//! with. If the clock steps back behind it, it stays the current one.

use super::settings::{Algorithm, Kind};
use super::state::CompactState;

const SECOND: u64 = 1_000_000;

#[inline(always)]
pub(super) fn used(state: &CompactState, now: u64) -> u64 {
    if state.expires_at > now { state.detail } else { 0 }
}

#[inline(always)]
pub(super) fn wait(state: &CompactState, now: u64, most: u64) -> u64 {
    if used(state, now) > most { state.expires_at - now } else { 0 }
}

#[inline(always)]
pub(super) fn charge(algorithm: &Algorithm, state: &mut CompactState, now: u64, cost: u64) {
    if state.expires_at <= now {
        let expires_at = match algorithm.kind {
            Kind::Window(Some(calendar)) => calendar.window((now / SECOND) as i64).1 as u64 * SECOND,
            _ => now - now % algorithm.span + algorithm.span,
        };
        *state = CompactState { expires_at, at: 0, detail: 0 };
    }
    state.detail += cost;
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
