//! Buckets that drain continuously: token buckets, leaky buckets and queues.
//!
//! This is the generic cell rate algorithm (GCRA, ITU-T Recommendation I.371, annex A), in its continuous-state leaky
//! bucket form. The *level* of a key is the tokens in use. A charge raises it, and `amount` tokens drain from it per
//! `interval`. To keep it exact, it is counted in units of 1/`interval` of a token: a token is `interval` units, and
//! `amount` units drain per microsecond.
//!
//! The state holds the level after the last charge as the instant at which it has drained, the *theoretical arrival
//! time*: rounded up to µs (`expires_at`), by how many units it was rounded up (the lower half of `detail`), and the
//! amount at which it drains (the upper half). Together with the instant of the last charge (`at`), a limit with
//! another amount can recover the level in tokens, and drains it at its own rate.

use super::settings::Algorithm;
use super::state::{Attempt, CompactState, div_ceil, product};

#[inline(always)]
pub(super) fn attempt(algorithm: &Algorithm, state: &CompactState, now: u64, cost: u64) -> Attempt {
    // If the clock has stepped back behind the last charge, time stands still.
    let now = now.max(state.at);
    let level = level(algorithm, state, now);
    let used = div_ceil(level, algorithm.span);
    let fits = algorithm.fits(used, cost);
    Attempt { used, charged: if fits { encode(level + units(algorithm, cost), now, algorithm.amount) } else { *state } }
}

#[inline(always)]
pub(super) fn wait(algorithm: &Algorithm, state: &CompactState, now: u64, most: u64) -> u64 {
    let from = now.max(state.at);
    let (level, most) = (level(algorithm, state, from), units(algorithm, most));
    if level <= most {
        return 0;
    }
    // At the rate of another limit, all of it may have drained earlier.
    from.saturating_add(div_ceil(level - most, algorithm.amount.into())).min(state.expires_at) - now
}

/// Takes the cost off the level that the last charge has left, but at most what is left of the level after the refunded
/// charge: what has drained since is not returned. A place in a queue is returned only if nobody is behind it, as
/// others have been promised their instants. The key keeps the rate at which it was charged.
pub(super) fn refund(algorithm: &Algorithm, state: &mut CompactState, mark: CompactState, now: u64, cost: u64) {
    let now = now.max(state.at);
    let units_in_use = level(algorithm, state, now);
    let left = match algorithm.queue_burst().is_some() {
        false => level(algorithm, &mark, now),
        true if (state.expires_at, state.detail) == (mark.expires_at, mark.detail) => units_in_use,
        true => 0,
    };
    let back = left.min(units(algorithm, cost));
    if back == 0 || units_in_use == 0 {
        return;
    }
    if units_in_use > back {
        *state = encode(charged(state).saturating_sub(back), state.at, (state.detail >> 32) as u32);
    }
    if units_in_use <= back || state.expires_at <= now {
        *state = CompactState::UNUSED;
    }
}

/// Converts tokens to units.
fn units(algorithm: &Algorithm, tokens: u64) -> u128 {
    product(tokens, algorithm.span)
}

/// Returns the units of a state that have not drained at `now`.
#[inline(always)]
fn level(algorithm: &Algorithm, state: &CompactState, now: u64) -> u128 {
    if state.expires_at <= now {
        return 0;
    }
    let [amount, rounding] = state.halves();
    if amount == u64::from(algorithm.amount) {
        return product(state.expires_at - now, amount).saturating_sub(rounding.into());
    }
    let drained = (i128::from(now) - i128::from(state.at)) * i128::from(algorithm.amount);
    (charged(state) as i128 - drained).max(0) as u128
}

/// Returns the units in use right after the last charge.
fn charged(state: &CompactState) -> u128 {
    let [amount, rounding] = state.halves();
    product(state.expires_at.saturating_sub(state.at), amount).saturating_sub(rounding.into())
}

/// Encodes a level that is not 0 at `now`, as it drains at this amount.
#[inline(always)]
fn encode(units: u128, now: u64, amount: u32) -> CompactState {
    let micros = div_ceil(units, amount.max(1).into());
    // The difference is less than the amount, so computing it modulo 2^32 is exact.
    let rounding = (micros as u32).wrapping_mul(amount).wrapping_sub(units as u32);
    CompactState {
        expires_at: now.saturating_add(micros),
        at: now,
        detail: u64::from(amount) << 32 | u64::from(rounding),
    }
}
