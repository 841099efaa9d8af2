//! A token bucket that refills at the end of each interval.

use super::mul_div::div_ceil;
use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};

/// The rule of a bucket that regains `amount` tokens at the end of each `interval` since it was last full.
///
/// The state holds a refill: its instant, the tokens that are missing until then (lower half of `detail`), and the
/// amount of the limit that has written it (upper half). The refill is the one that fills the bucket, unless that is
/// 2^63 µs or more off: then any earlier one, with the highest bit of its instant set, so that nobody takes it for the
/// expiry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalBucket {
    pub(crate) capacity: u64,
    /// The tokens of a refill.
    pub(crate) amount: u32,
    /// In µs.
    pub(crate) interval: u64,
}

const FAR: u64 = 1 << 63;

/// The missing tokens of a bucket at an instant.
#[derive(Clone, Copy)]
struct Deficit {
    tokens: u128,
    /// The time until the next refill, in µs, from 1 to the interval.
    next_refill: u128,
}

impl RateAlgorithm<CompactState> for IntervalBucket {
    #[inline]
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        let deficit = self.deficit(state, now);
        match self.capacity.checked_sub(cost) {
            None => Availability::Never,
            Some(most) if deficit.tokens <= u128::from(most) => Availability::NOW,
            Some(most) => Availability::After(self.time_until(most.into(), deficit)),
        }
    }

    /// The mark is the first refill after the charge, and the amount.
    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let mut deficit = self.deficit(state, now);
        deficit.tokens += u128::from(cost);
        *state = self.encode(deficit, now);
        let mark = ChargeMark { at: now + deficit.next_refill as u64, detail: u64::from(self.amount) << 32 };
        (mark, self.snapshot_of(deficit))
    }

    #[inline]
    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        self.snapshot_of(self.deficit(state, now))
    }

    /// Refunds the cost, less all refills since the charge: see [`Gcra`](super::gcra::Gcra) for why these count as
    /// refills of this charge first. The state has no room for the time of the last charge.
    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        let mut deficit = self.deficit(state, now);
        let refills = match now.checked_sub(mark.at) {
            Some(since) => since / self.interval + 1,
            None if mark.at - now <= self.interval => 0,
            // After the clock has stepped back, it is unknown how many refills there were.
            None => return,
        };
        // Nor is it known how much another rate has refilled.
        if [mark.detail >> 32, state.detail >> 32] != [u64::from(self.amount); 2] {
            return;
        }
        let unfilled = u128::from(cost).saturating_sub(u128::from(refills) * u128::from(self.amount));
        deficit.tokens = deficit.tokens.saturating_sub(unfilled);
        *state = self.encode(deficit, now);
    }

    fn convert_rate(&self, state: &mut CompactState, now: u64) {
        let deficit = self.deficit(state, now);
        if deficit.tokens > 0 && state.detail >> 32 != u64::from(self.amount) {
            *state = self.encode(deficit, now);
        }
    }
}

impl IntervalBucket {
    /// Returns the time that an empty bucket takes to fill, in µs.
    pub(super) fn window(&self) -> u128 {
        self.refills(self.capacity.into()) * u128::from(self.interval)
    }

    /// Returns the state of a bucket that lacks `missing` tokens until a refill at `at`, where each refill brings
    /// `amount`.
    #[inline]
    pub(crate) fn state(&self, at: u64, missing: u32, amount: u32) -> CompactState {
        if missing == 0 {
            return CompactState::UNUSED;
        }
        let before_last = missing.div_ceil(amount) - 1;
        let last = u128::from(at) + u128::from(before_last) * u128::from(self.interval);
        let (expires_at, missing) = match u64::try_from(last) {
            Ok(last) if last & FAR == 0 => (last, missing - before_last * amount),
            _ => (at | FAR, missing),
        };
        CompactState { expires_at, detail: u64::from(amount) << 32 | u64::from(missing) }
    }

    /// Returns the number of refills that bring `tokens`.
    #[inline]
    fn refills(&self, tokens: u128) -> u128 {
        div_ceil(tokens, self.amount.into())
    }

    #[inline]
    fn deficit(&self, state: &CompactState, now: u64) -> Deficit {
        let interval = u128::from(self.interval);
        let (refill, amount) = (state.expires_at & !FAR, state.detail >> 32);
        let (missing, each) = (u128::from(state.detail as u32), u128::from(amount));
        let (tokens, next_refill) = match refill.checked_sub(now) {
            None | Some(0) => {
                let since = now - refill;
                let refills = u128::from(since / self.interval + 1);
                (missing.saturating_sub(refills * each), interval - u128::from(since % self.interval))
            }
            Some(left) => {
                // If the clock has stepped back, this may exceed the capacity.
                let before = u128::from(left.div_ceil(self.interval) - 1);
                (missing + before * each, u128::from(left) - before * interval)
            }
        };
        match tokens {
            0 => Deficit { tokens: 0, next_refill: interval },
            tokens if amount == u64::from(self.amount) => Deficit { tokens, next_refill },
            // At another rate, more might never come back.
            tokens => Deficit { tokens: tokens.min(u32::MAX.into()), next_refill },
        }
    }

    #[inline]
    fn encode(&self, deficit: Deficit, now: u64) -> CompactState {
        let mut at = u128::from(now) + deficit.next_refill;
        let mut missing = deficit.tokens;
        if let Some(excess) = missing.checked_sub(u32::MAX.into()) {
            // Counted until a later refill, it fits.
            let later = self.refills(excess);
            at += later * u128::from(self.interval);
            missing -= later * u128::from(self.amount);
        }
        self.state(at as u64, missing as u32, self.amount)
    }

    #[inline]
    fn snapshot_of(&self, deficit: Deficit) -> QuotaSnapshot {
        if deficit.tokens == 0 {
            return QuotaSnapshot::unused(self.capacity);
        }
        let used = deficit.tokens.min(self.capacity.into());
        QuotaSnapshot {
            remaining: self.capacity - used as u64,
            more_after: Some(self.time_until(used - 1, deficit)),
            reset_after: self.time_until(0, deficit),
        }
    }

    /// Returns the time until at most `tokens` are missing, which are fewer than now, in µs.
    #[inline]
    fn time_until(&self, tokens: u128, deficit: Deficit) -> u128 {
        deficit.next_refill + (self.refills(deficit.tokens - tokens) - 1) * u128::from(self.interval)
    }
}
