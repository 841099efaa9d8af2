//! Buckets that drain continuously, and are leased in blocks.
//!
//! They decide as those of [`bucket`](super::bucket), but blocks that were not spent are refunded exactly. The mark of a
//! charge is the level that it has left, of which a part drains, and a part may have been refunded by others. So the
//! state counts the tokens that were refunded, and a mark has this number at its charge: see [`refund`].
//!
//! The state is that of a *busy period*, in which the bucket is never empty: when it began (`at`), and when all of its
//! tokens have drained (`expires_at`), rounded up to µs, from which their number follows, as less than a token drains per
//! µs. The halves of `detail` are the amount that drains per interval, and the tokens that were refunded in the period.
//! A charge begins another period if the bucket is empty, if it drains at another rate, or if the period has lasted for
//! [`LONGEST_PERIOD`], so that numbers stay small. What is left of a token then counts as a whole one.

use super::settings::Algorithm;
use super::state::{Attempt, CompactState, div, div_ceil, product};

/// The length of a busy period after which a charge begins another one, in µs.
const LONGEST_PERIOD: u64 = 1 << 28;

/// A busy period.
struct Period {
    began: u64,
    /// The tokens that were charged in it, less those that were refunded.
    tokens: u64,
    refunded: u64,
    /// The tokens that drain per interval.
    amount: u64,
    interval: u64,
}

impl Period {
    fn of(algorithm: &Algorithm, state: &CompactState) -> Self {
        let ([amount, refunded], began) = (state.halves(), state.at);
        let tokens = div(product(state.expires_at.saturating_sub(began), amount), algorithm.span);
        Self { began, tokens, refunded, amount, interval: algorithm.span }
    }

    /// Returns the tokens that have drained at `now`, in units of 1/`interval` of a token.
    fn drained(&self, now: u64) -> u128 {
        product(now.saturating_sub(self.began), self.amount)
    }

    /// Returns the tokens in use at `now`, rounded up.
    fn used(&self, now: u64) -> u64 {
        self.tokens.saturating_sub(div(self.drained(now), self.interval))
    }

    /// Returns the instant at which so many tokens have drained.
    fn drained_at(&self, tokens: u64) -> u64 {
        self.began.saturating_add(div_ceil(product(tokens, self.interval), self.amount.max(1)))
    }

    fn encode(&self) -> CompactState {
        CompactState {
            expires_at: self.drained_at(self.tokens),
            at: self.began,
            detail: self.amount << 32 | self.refunded,
        }
    }
}

#[inline(never)]
pub(super) fn attempt(algorithm: &Algorithm, state: &CompactState, now: u64, cost: u64) -> Attempt {
    let mut period = Period::of(algorithm, state);
    let used = if state.expires_at > now { period.used(now) } else { 0 };
    if !algorithm.fits(used, cost) {
        return Attempt { used, charged: *state };
    }
    let (from, amount) = (now.max(period.began), u64::from(algorithm.amount));
    if used == 0 || period.amount != amount || from - period.began >= LONGEST_PERIOD {
        let began = if used == 0 { now } else { from };
        period = Period { began, tokens: used, refunded: 0, amount, interval: algorithm.span };
    }
    period.tokens = period.tokens.saturating_add(cost);
    Attempt { used, charged: period.encode() }
}

#[inline(never)]
pub(super) fn wait(algorithm: &Algorithm, state: &CompactState, now: u64, most: u64) -> u64 {
    let period = Period::of(algorithm, state);
    match period.tokens.saturating_sub(most) {
        excess if excess > 0 && state.expires_at > now => period.drained_at(excess).saturating_sub(now),
        _ => 0,
    }
}

/// Refunds at most what is left of the level after the refunded charge, less what was refunded since.
///
/// A charge of fewer tokens would have left a level that is lower by the difference, less what drains while that level is
/// 0. So the level of the state never falls below the one that it would have without the refunded tokens.
pub(super) fn refund(algorithm: &Algorithm, state: &mut CompactState, mark: CompactState, now: u64, cost: u64) {
    let (mut period, marked) = (Period::of(algorithm, state), Period::of(algorithm, &mark));
    let is_same = (period.began, period.amount) == (marked.began, marked.amount);
    if !is_same || state.expires_at <= now {
        return;
    }
    let left = marked.tokens.saturating_sub(div_ceil(marked.drained(now), marked.interval));
    let back = cost.min(left.saturating_sub(period.refunded.saturating_sub(marked.refunded)));
    period.refunded += back;
    // A larger number does not fit into the state. The tokens then stay in use until they have drained.
    if back == 0 || period.refunded > u32::MAX.into() {
        return;
    }
    period.tokens = period.tokens.saturating_sub(back);
    *state = period.encode();
    if state.expires_at <= now {
        *state = CompactState::UNUSED;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::settings::{BucketKind, Kind};
    use crate::algorithm::{KeyState, TokenBucket};

    /// A bucket without a reserve, which does not matter for the state.
    fn bucket(capacity: u32, amount: u32, micros: u64) -> Algorithm {
        let bucket = TokenBucket::new(capacity, amount, Duration::from_micros(micros));
        Algorithm { kind: Kind::LeasedBucket(BucketKind::Token), ..bucket.into() }
    }

    /// A charge, the tokens of it that no request has spent, and its mark.
    #[derive(Clone)]
    struct Charge {
        at: u64,
        spent: u64,
        unspent: u64,
        mark: CompactState,
    }

    /// Returns the level of the bucket at an instant, in units of 1/`span` of a token, if what was not spent had never been
    /// charged.
    fn level(algorithm: &Algorithm, charges: &[Charge], now: u64) -> u128 {
        let (mut level, mut last) = (0_u128, 0);
        for charge in charges {
            level = level.saturating_sub(product(charge.at - last, algorithm.amount.into()));
            level += product(charge.spent, algorithm.span);
            last = charge.at;
        }
        level.saturating_sub(product(now - last, algorithm.amount.into()))
    }

    /// Tries all sequences of a number of steps. Returns how many.
    fn explore(algorithm: &Algorithm, state: &KeyState, charges: &[Charge], now: u64, steps: u32) -> u64 {
        let used = state.used(algorithm, now);
        assert!(product(used, algorithm.span) >= level(algorithm, charges, now), "{state:?} at {now}");
        if steps == 0 {
            return 1;
        }
        let mut count = explore(algorithm, state, charges, now + 1, steps - 1);
        for (spent, unspent) in [(1, 0), (0, 1), (1, 1), (0, 2)] {
            let (cost, mut state, mut charges) = (spent + unspent, state.clone(), charges.to_vec());
            if algorithm.fits(used, cost) {
                let charged = state.attempt(algorithm, now, cost).charged;
                state.charge(algorithm, now, cost, charged);
                charges.push(Charge { at: now, spent, unspent, mark: charged });
                count += explore(algorithm, &state, &charges, now, steps - 1);
            }
        }
        for place in (0..charges.len()).filter(|place| charges[*place].unspent > 0) {
            let (mut state, mut charges) = (state.clone(), charges.to_vec());
            let Charge { unspent, mark, .. } = charges[place];
            state.refund(algorithm, mark, now, unspent);
            charges[place].unspent = 0;
            count += explore(algorithm, &state, &charges, now, steps - 1);
        }
        count
    }

    /// All small state spaces: processes that take blocks, spend parts of them, and return the rest in any order.
    #[test]
    fn refunds_never_lower_a_level_below_what_was_spent() {
        for (capacity, amount, span) in [(4, 1, 2), (4, 2, 3), (3, 1, 1), (5, 3, 4)] {
            let count = explore(&bucket(capacity, amount, span), &KeyState::UNUSED, &[], 1_000, 8);
            assert!(count > 10_000, "{count}");
        }
    }

    /// By the level that is left after the charge, the refund of the second block would return another charge.
    #[test]
    fn blocks_that_are_returned_in_any_order_return_no_other_charge() {
        let (leased, mut state) = (bucket(22, 1, 1), KeyState::UNUSED);
        let take = |state: &mut KeyState, now, cost| {
            let charged = state.attempt(&leased, now, cost).charged;
            state.charge(&leased, now, cost, charged);
            charged
        };
        let [one, other] = [10, 10].map(|cost| take(&mut state, 1_000, cost));
        state.refund(&leased, one, 1_000, 10);
        let _ = take(&mut state, 1_008, 5);
        state.refund(&leased, other, 1_008, 10);
        assert_eq!(state.used(&leased, 1_008), 5);
    }
}
