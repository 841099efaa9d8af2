//! The generic cell rate algorithm (GCRA, ITU-T Recommendation I.371, annex A), in its continuous-state leaky bucket
//! form: what continuous token buckets, leaky buckets and queues have in common.
//!
//! The *level* of a key is the tokens in use. A charge raises it, and `amount` tokens drain from it per `interval`. To
//! keep it exact, it is counted in units of 1/`interval` of a token: a token is `interval` units, and `amount` units
//! drain per microsecond.
//!
//! The state holds the level after the last charge as the instant at which it has drained, the *theoretical arrival
//! time*: rounded up to µs (`expires_at`), by how many units it was rounded up (the lower half of `detail`), and the
//! amount at which it drains (the upper half). With the instant of the last charge (`at`), that tells the level in
//! tokens to a limit of another amount, too, which drains it at its own rate from then on.

use super::mul_div::div_ceil;
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// The burst size, in tokens.
    pub(crate) capacity: u64,
    /// The tokens that drain per interval.
    pub(crate) amount: u32,
    /// In µs.
    pub(crate) interval: u64,
    /// Whether a request waits until the level before it has drained.
    pub(crate) is_queue: bool,
}

/// The level of a key at an instant.
#[derive(Clone, Copy)]
struct Level {
    units: u128,
    /// The present instant, or that of the last charge if the clock has stepped back behind it: time then stands still.
    now: u64,
    /// The instant from which the key counts as unused.
    expires_at: u64,
}

impl Level {
    /// Encodes a level that is not 0, as it drains at this amount.
    #[inline]
    fn encode(&self, amount: u64) -> CompactState {
        let micros = div_ceil(self.units, amount.max(1));
        // The difference is less than the amount, so computing it modulo 2^32 is exact.
        let rounding = (micros as u32).wrapping_mul(amount as u32).wrapping_sub(self.units as u32);
        let expires_at = self.now.saturating_add(micros);
        CompactState { expires_at, at: self.now, detail: amount << 32 | u64::from(rounding) }
    }
}

impl RateAlgorithm<CompactState> for Gcra {
    #[inline]
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        self.availability(&self.level(state, now), now, cost)
    }

    /// The mark is the state that the charge leaves.
    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        self.charge(state, self.level(state, now), now, cost)
    }

    /// Computes the level once, where [`peek`](Self::peek) and [`commit`](Self::commit) would do so twice.
    #[inline]
    fn decide(&self, state: &mut CompactState, now: u64, cost: u64) -> Evaluation {
        let level = self.level(state, now);
        let availability = self.availability(&level, now, cost);
        if !availability.is_now() {
            return Evaluation::uncharged(availability, self.snapshot_of(&level, now));
        }
        let (mark, snapshot) = self.charge(state, level, now, cost);
        Evaluation { availability, mark, snapshot }
    }

    #[inline]
    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        self.snapshot_of(&self.level(state, now), now)
    }

    /// Takes the cost off the level that the last charge has left, but at most what is left of the level after the
    /// refunded charge: what has drained since is not returned. A place in a queue is returned only if nobody is behind
    /// it, as others have been promised their instants. The key keeps the rate at which it was charged.
    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        let level = self.level(state, now);
        let left = match self.is_queue {
            false => self.units_at(&mark.0, level.now),
            true if (state.expires_at, state.detail) == (mark.0.expires_at, mark.0.detail) => level.units,
            true => 0,
        };
        let back = left.min(self.units(cost));
        if back == 0 || level.units == 0 {
            return;
        }
        if level.units > back {
            let charged = Level { units: charged_units(state).saturating_sub(back), now: state.at, expires_at: 0 };
            *state = charged.encode(state.detail >> 32);
        }
        if level.units <= back || state.expires_at <= level.now {
            *state = CompactState::UNUSED;
        }
    }
}

impl Gcra {
    /// Returns the time in which a whole bucket drains, in µs.
    pub(super) fn window(&self) -> u64 {
        self.micros(self.units(self.capacity))
    }

    /// Converts tokens to units.
    #[inline]
    fn units(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.interval)
    }

    /// Returns the time in which `units` drain, in µs, rounded up.
    #[inline]
    fn micros(&self, units: u128) -> u64 {
        div_ceil(units, self.amount.into())
    }

    #[inline]
    fn availability(&self, level: &Level, now: u64, cost: u64) -> Availability {
        match (level.units + self.units(cost)).checked_sub(self.units(self.capacity)) {
            None | Some(0) if self.is_queue => {
                Availability::Now { delay: self.wait(level, level.units, now), overage: false }
            }
            None | Some(0) => Availability::NOW,
            Some(_) if cost > self.capacity => Availability::Never,
            Some(excess) => Availability::After(self.wait(level, excess, now)),
        }
    }

    /// Charges `cost` on top of the level of a state.
    #[inline]
    fn charge(&self, state: &mut CompactState, mut level: Level, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        level.units += self.units(cost);
        *state = level.encode(self.amount.into());
        level.expires_at = state.expires_at;
        (ChargeMark(*state), self.snapshot_of(&level, now))
    }

    #[inline]
    fn level(&self, state: &CompactState, now: u64) -> Level {
        let now = now.max(state.at);
        Level { units: self.units_at(state, now), now, expires_at: state.expires_at.max(now) }
    }

    /// Returns the units of a state that have not drained at `now`.
    #[inline]
    fn units_at(&self, state: &CompactState, now: u64) -> u128 {
        if state.expires_at <= now {
            return 0;
        }
        let [amount, rounding] = [state.detail >> 32, state.detail & u64::from(u32::MAX)].map(u128::from);
        if amount == u128::from(self.amount) {
            return (u128::from(state.expires_at - now) * amount).saturating_sub(rounding);
        }
        self.units_of_other_rate(state, now)
    }

    /// Returns the same of a state that a limit of another amount has left.
    #[cold]
    fn units_of_other_rate(&self, state: &CompactState, now: u64) -> u128 {
        let drained = (i128::from(now) - i128::from(state.at)) * i128::from(self.amount);
        (charged_units(state) as i128 - drained).max(0) as u128
    }

    /// Returns the time until `units` of a level have drained, in µs.
    #[inline]
    fn wait(&self, level: &Level, units: u128, now: u64) -> u64 {
        // At the rate of another limit, all of it may have drained earlier.
        level.now.saturating_add(self.micros(units)).min(level.expires_at) - now
    }

    #[inline]
    fn snapshot_of(&self, level: &Level, now: u64) -> QuotaSnapshot {
        if level.units == 0 {
            return QuotaSnapshot::unused(self.capacity);
        }
        let used = div_ceil(level.units, self.interval).min(self.capacity);
        QuotaSnapshot {
            remaining: self.capacity - used,
            more_after: Some(self.wait(level, level.units - self.units(used - 1), now)),
            reset_after: level.expires_at - now,
        }
    }
}

/// Returns the units in use right after the last charge of a state.
fn charged_units(state: &CompactState) -> u128 {
    let [amount, rounding] = [state.detail >> 32, state.detail & u64::from(u32::MAX)].map(u128::from);
    (u128::from(state.expires_at.saturating_sub(state.at)) * amount).saturating_sub(rounding)
}
