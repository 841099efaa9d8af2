//! Buckets that regain `amount` tokens at the end of each `interval` since they were last full.
//!
//! The state holds the first refill after the last charge (`at`), and the tokens that are missing until then (the lower
//! half of `detail`). It expires with the refill that fills the bucket, by the amount of the limit that was last
//! charged (the upper half).

use super::settings::Algorithm;
use super::state::{Attempt, CompactState};

#[inline(always)]
pub(super) fn attempt(algorithm: &Algorithm, state: &CompactState, now: u64, cost: u64) -> Attempt {
    let (missing, refill) = missing(algorithm, state, present(algorithm, state, now));
    let fits = algorithm.fits(missing, cost);
    let charged = if fits { encode(missing + cost, refill, algorithm.amount, algorithm.span) } else { *state };
    Attempt { used: missing, charged }
}

#[inline(always)]
pub(super) fn wait(algorithm: &Algorithm, state: &CompactState, now: u64, most: u64) -> u64 {
    let (missing, refill) = missing(algorithm, state, present(algorithm, state, now));
    match missing.saturating_sub(most) {
        0 => 0,
        // At the rate of another limit, the bucket may be full earlier.
        excess => full_at(excess, refill, algorithm.amount, algorithm.span).min(state.expires_at) - now,
    }
}

/// Takes the cost, less all refills since the refunded charge, off the tokens that were missing after the last charge:
/// these refills count as refills of the refunded charge first. The key keeps the rate at which it was charged.
pub(super) fn refund(algorithm: &Algorithm, state: &mut CompactState, mark: CompactState, now: u64, cost: u64) {
    let now = present(algorithm, state, now);
    let (missing, _) = missing(algorithm, state, now);
    let refilled = refills(algorithm, mark.at, now).saturating_mul(algorithm.amount.into());
    let back = cost.saturating_sub(refilled);
    if missing == 0 || back == 0 || mark.expires_at <= now {
        return;
    }
    if missing > back {
        let [amount, charged] = state.halves();
        *state = encode(charged - back, state.at, amount as u32, algorithm.span);
    }
    if missing <= back || state.expires_at <= now {
        *state = CompactState::UNUSED;
    }
}

/// Returns the present instant. If the clock has stepped back behind the interval of the last charge, time stands still
/// at its start.
fn present(algorithm: &Algorithm, state: &CompactState, now: u64) -> u64 {
    now.max(state.at.saturating_sub(algorithm.span))
}

/// Returns the missing tokens at `now`, and the instant of the next refill.
fn missing(algorithm: &Algorithm, state: &CompactState, now: u64) -> (u64, u64) {
    let refills = refills(algorithm, state.at, now);
    let [_, charged] = state.halves();
    match charged.saturating_sub(refills.saturating_mul(algorithm.amount.into())) {
        missing if missing > 0 && state.expires_at > now => (missing, state.at + refills * algorithm.span),
        _ => (0, now + algorithm.span),
    }
}

/// Returns the number of refills up to `now`, from the one at `first` on.
fn refills(algorithm: &Algorithm, first: u64, now: u64) -> u64 {
    now.checked_sub(first).map_or(0, |since| since / algorithm.span + 1)
}

/// Returns the instant of the refill after which `missing` tokens are no longer missing. The next one is at `refill`.
fn full_at(missing: u64, refill: u64, amount: u32, interval: u64) -> u64 {
    refill.saturating_add((missing.div_ceil(u64::from(amount).max(1)) - 1).saturating_mul(interval))
}

/// Encodes the missing tokens, at least one.
fn encode(missing: u64, refill: u64, amount: u32, interval: u64) -> CompactState {
    let expires_at = full_at(missing, refill, amount, interval);
    CompactState { expires_at, at: refill, detail: u64::from(amount) << 32 | missing }
}
