//! A token bucket that refills at the end of each interval.

use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};

/// The rule of a bucket that regains `amount` tokens at the end of each `interval` since it was last full.
///
/// The state holds the first refill after the last charge (`at`), and the tokens that are missing until then
/// (the lower half of `detail`). It expires with the refill that fills the bucket, by the amount of the limit that was
/// last charged (the upper half).
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalBucket {
    pub(crate) capacity: u64,
    /// The tokens of a refill.
    pub(crate) amount: u32,
    /// In µs.
    pub(crate) interval: u64,
}

/// The missing tokens of a bucket at an instant.
#[derive(Clone, Copy)]
struct Deficit {
    tokens: u64,
    /// The instant of the next refill.
    refill: u64,
    /// The instant from which the key counts as unused.
    expires_at: u64,
}

impl RateAlgorithm<CompactState> for IntervalBucket {
    #[inline]
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        let deficit = self.deficit(state, now);
        match self.capacity.checked_sub(cost) {
            None => Availability::Never,
            Some(most) if deficit.tokens <= most => Availability::NOW,
            Some(most) => Availability::After(self.wait(most, &deficit, now)),
        }
    }

    /// The mark is the state that the charge leaves.
    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let mut deficit = self.deficit(state, now);
        deficit.tokens += cost;
        *state = self.encode(&deficit, self.amount.into());
        deficit.expires_at = state.expires_at;
        (ChargeMark(*state), self.snapshot_of(&deficit, now))
    }

    #[inline]
    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        self.snapshot_of(&self.deficit(state, now), now)
    }

    /// Takes the cost, less all refills since the refunded charge, off the tokens that were missing after the last
    /// charge: these refills count as refills of the refunded charge first. The key keeps the rate at which it was
    /// charged.
    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        let now = self.now(state, now);
        let deficit = self.deficit(state, now);
        let refilled = self.refills_since(mark.0.at, now).saturating_mul(self.amount.into());
        let back = cost.saturating_sub(refilled);
        if deficit.tokens == 0 || back == 0 || mark.0.expires_at <= now {
            return;
        }
        if deficit.tokens > back {
            let tokens = (state.detail & u64::from(u32::MAX)) - back;
            *state = self.encode(&Deficit { tokens, refill: state.at, expires_at: 0 }, state.detail >> 32);
        }
        if deficit.tokens <= back || state.expires_at <= now {
            *state = CompactState::UNUSED;
        }
    }
}

impl IntervalBucket {
    /// Returns the time that an empty bucket takes to fill, in µs.
    pub(super) fn window(&self) -> u64 {
        self.refills(self.capacity) * self.interval
    }

    /// Returns the number of refills that bring `tokens`.
    #[inline]
    fn refills(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.amount.into())
    }

    /// Returns the number of refills up to `now`, from the one at `first` on.
    fn refills_since(&self, first: u64, now: u64) -> u64 {
        now.checked_sub(first).map_or(0, |since| since / self.interval + 1)
    }

    /// Returns the present instant. If the clock has stepped back behind the interval of the last charge, time stands
    /// still at its start.
    #[inline]
    fn now(&self, state: &CompactState, now: u64) -> u64 {
        now.max(state.at.saturating_sub(self.interval))
    }

    #[inline]
    fn deficit(&self, state: &CompactState, now: u64) -> Deficit {
        let now = self.now(state, now);
        let refills = self.refills_since(state.at, now);
        let missing = (state.detail & u64::from(u32::MAX)).saturating_sub(refills.saturating_mul(self.amount.into()));
        if missing == 0 || state.expires_at <= now {
            return Deficit { tokens: 0, refill: now + self.interval, expires_at: now };
        }
        Deficit { tokens: missing, refill: state.at + refills * self.interval, expires_at: state.expires_at }
    }

    /// Encodes a deficit that is not 0, as it refills by this amount.
    #[inline]
    fn encode(&self, deficit: &Deficit, amount: u64) -> CompactState {
        let before_last = deficit.tokens.div_ceil(amount.max(1)) - 1;
        let expires_at = deficit.refill.saturating_add(before_last.saturating_mul(self.interval));
        CompactState { expires_at, at: deficit.refill, detail: amount << 32 | deficit.tokens }
    }

    #[inline]
    fn snapshot_of(&self, deficit: &Deficit, now: u64) -> QuotaSnapshot {
        if deficit.tokens == 0 {
            return QuotaSnapshot::unused(self.capacity);
        }
        let used = deficit.tokens.min(self.capacity);
        QuotaSnapshot {
            remaining: self.capacity - used,
            more_after: Some(self.wait(used - 1, deficit, now)),
            reset_after: deficit.expires_at - now,
        }
    }

    /// Returns the time until at most `tokens` are missing, which are fewer than now, in µs.
    #[inline]
    fn wait(&self, tokens: u64, deficit: &Deficit, now: u64) -> u64 {
        let before_last = self.refills(deficit.tokens - tokens) - 1;
        let at = deficit.refill.saturating_add(before_last.saturating_mul(self.interval));
        // At the rate of another limit, the bucket may be full earlier.
        at.min(deficit.expires_at) - now
    }
}
