//! A counter for the current window, and a weighted one for the previous window.
//!
//! The state is the end of the window after the current one (`expires_at`), and both counts (the halves of `detail`,
//! the previous one first). A window in which nothing was charged leaves no trace: the previous window is then encoded
//! as the current one.
//!
//! The previous count is weighted by the part of its window that the sliding window still covers, and by a percentage.

use super::settings::{Algorithm, Kind, Rounding};
use super::state::{Attempt, CompactState, div, product};

/// The counts of the current window, which begins at `start`, and of the previous one.
#[derive(Clone, Copy)]
struct Windows {
    start: u64,
    previous: u64,
    current: u64,
}

#[inline(always)]
pub(super) fn attempt(algorithm: &Algorithm, state: &CompactState, now: u64, cost: u64) -> Attempt {
    let windows = windows(algorithm, state, now);
    let used = used(algorithm, windows, now);
    if !algorithm.fits(used, cost) {
        return Attempt { used, charged: *state };
    }
    Attempt { used, charged: encode(algorithm, Windows { current: windows.current + cost, ..windows }) }
}

fn used(algorithm: &Algorithm, windows: Windows, now: u64) -> u64 {
    // If the clock has stepped back behind the windows of the state, no time has elapsed in them.
    let covered = algorithm.span - now.saturating_sub(windows.start);
    let (weight, divisor, rounding) = weighting(algorithm);
    div(product(windows.previous * weight, covered) + u128::from(rounding), divisor) + windows.current
}

#[inline(always)]
pub(super) fn wait(algorithm: &Algorithm, state: &CompactState, now: u64, most: u64) -> u64 {
    let windows = windows(algorithm, state, now);
    if used(algorithm, windows, now) <= most {
        return 0;
    }
    let at = match most.checked_sub(windows.current) {
        Some(most) => windows.start + faded_to(algorithm, most, windows.previous),
        None => windows.start + algorithm.span + faded_to(algorithm, most, windows.current),
    };
    at - now
}

/// Takes the cost off the count of its window, as the state has it: after a step back, the clock may show an earlier
/// window than that of the refund, in which the count before still matters.
pub(super) fn refund(algorithm: &Algorithm, state: &mut CompactState, mark: CompactState, now: u64, cost: u64) {
    let [mut previous, mut current] = state.halves();
    if state.expires_at <= now {
        return;
    }
    if mark.expires_at == state.expires_at {
        current = current.saturating_sub(cost);
    } else if mark.expires_at.saturating_add(algorithm.span) == state.expires_at {
        previous = previous.saturating_sub(cost);
    } else {
        return;
    }
    let start = state.expires_at.saturating_sub(2 * algorithm.span);
    *state = encode(algorithm, Windows { start, previous, current });
    if state.expires_at <= now {
        *state = CompactState::UNUSED;
    }
}

/// Returns the windows that count at `now`.
fn windows(algorithm: &Algorithm, state: &CompactState, now: u64) -> Windows {
    let start = now - now % algorithm.span;
    let [previous, current] = state.halves();
    if state.expires_at <= start {
        Windows { start, previous: 0, current: 0 }
    } else if state.expires_at <= start + algorithm.span {
        Windows { start, previous: current, current: 0 }
    } else {
        Windows { start: start.max(state.expires_at.saturating_sub(2 * algorithm.span)), previous, current }
    }
}

fn encode(algorithm: &Algorithm, windows: Windows) -> CompactState {
    let Windows { start, previous, current } = windows;
    let (expires_at, detail) = match (previous, current) {
        (0, 0) => return CompactState::UNUSED,
        (_, 0) => (start + algorithm.span, previous),
        _ => (start + 2 * algorithm.span, previous << 32 | current),
    };
    CompactState { expires_at, at: 0, detail }
}

/// Returns how far into the next window a `count` is weighted as `most` or less, in µs.
fn faded_to(algorithm: &Algorithm, most: u64, count: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    let (weight, divisor, rounding) = weighting(algorithm);
    let covered = div(product(most + 1, divisor) - u128::from(rounding + 1), count * weight);
    algorithm.span - covered.min(algorithm.span)
}

/// Returns the weight of the previous count, the divisor of a weighted count, and the number that is added to it before
/// it is divided and rounded down.
fn weighting(algorithm: &Algorithm) -> (u64, u64, u64) {
    let divisor = 100 * algorithm.span;
    match algorithm.kind {
        Kind::Counter(Rounding::Up, weight) => (weight.into(), divisor, divisor - 1),
        Kind::Counter(Rounding::Down, weight) => (weight.into(), divisor, 0),
        _ => unreachable!("other algorithms have no previous window"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::SlidingWindowCounter;

    #[test]
    fn a_clock_that_steps_back_finds_the_window_before_a_refund() {
        let algorithm = Algorithm::from(SlidingWindowCounter::new(100, std::time::Duration::from_micros(100)));
        let charge = |state: CompactState, now, cost| attempt(&algorithm, &state, now, cost).charged;
        let mut state = charge(charge(CompactState::UNUSED, 1_010, 40), 1_190, 6);
        let mark = state;
        let used = |state: &CompactState| attempt(&algorithm, state, 1_195, 0).used;
        assert_eq!(used(&state), 2 + 6);
        // In the next window.
        refund(&algorithm, &mut state, mark, 1_205, 5);
        assert_eq!((used(&state), attempt(&algorithm, &state, 1_205, 0).used), (3, 1));
    }
}
