//! The generic cell rate algorithm (GCRA, ITU-T Recommendation I.371, annex A), in its virtual scheduling form: what
//! continuous token buckets and leaky buckets have in common.
//!
//! The *theoretical arrival time* (TAT) of a key is the instant at which its bucket is full again (or, of a leaky
//! bucket, empty). A charge advances the TAT by `interval / amount` for each token, the emission interval, and is
//! allowed if the TAT is then at most `capacity` emission intervals ahead of the clock.
//!
//! The distance of the TAT from the clock is the *backlog*: the tokens in use, and the time until all of them are back.
//! To keep it exact, it is counted in units of 1/`interval` of a token: a token is `interval` units, and a microsecond
//! brings back `amount` of them.

use super::last_charge::LastChargeTick;
use super::mul_div::div_ceil;
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};
use super::tat::Tat;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// The burst size, in tokens.
    pub(crate) capacity: u64,
    /// The tokens that come back per interval.
    pub(crate) amount: u32,
    /// In µs.
    pub(crate) interval: u64,
}

/// The longest backlog: 1.41 · 10^23 µs. Valid limits have at most 1.36 · 10^23 µs, with 2^32 tokens at one token in 366
/// days, so only a clock that steps back by far exceeds it. Beyond it, a backlog might not fit into a state of a lower
/// rate.
const MAX_BACKLOG: u128 = 1_000_000_000 << 47;

impl RateAlgorithm<CompactState> for Gcra {
    #[inline]
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        self.availability(self.backlog(state, now), cost)
    }

    /// The mark is the instant of the charge, the amount, and the tick that the charge leaves in the state.
    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let tat = Tat::decode(state, self.amount);
        self.charge(state, &tat, self.backlog_of(&tat, now), now, cost)
    }

    /// Decodes the state once, where [`peek`](Self::peek) and [`commit`](Self::commit) would do so twice.
    // Always inlined, as the functions that it calls: otherwise their 128-bit spans pass through memory, and a decision
    // takes 891 instructions instead of 809 ("token bucket" in `.ci/instructions`).
    #[inline(always)]
    fn decide(&self, state: &mut CompactState, now: u64, cost: u64) -> Evaluation {
        let tat = Tat::decode(state, self.amount);
        let backlog = self.backlog_of(&tat, now);
        let availability = self.availability(backlog, cost);
        if availability.is_now() {
            let (mark, snapshot) = self.charge(state, &tat, backlog, now, cost);
            return Evaluation { availability, mark, snapshot };
        }
        if tat.amount == self.amount {
            return Evaluation::uncharged(availability, self.snapshot_at(backlog));
        }
        self.convert_rate(state, now);
        Evaluation::uncharged(availability, self.snapshot(state, now))
    }

    #[inline]
    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        self.snapshot_at(self.backlog(state, now))
    }

    /// Reduces the backlog by the part of the charge that has certainly not drained: the cost, less the units that
    /// drained between the charge and the last charge of the key.
    ///
    /// The remaining backlog must not be less than if the request had never been charged. Let B(s) be the backlog at
    /// the instant s in the history without all charges that were refunded before. The stored backlog is at least B.
    /// Without a further charge of c units at t, B is lower now by the minimum of c and of B(s) for all s since t:
    ///
    /// - From t to the last charge, at l, B(s) contains the charge, so B(s) ≥ c − drained(t, l).
    /// - Since l, B(s) has only shrunk, so its minimum is the present value of B.
    ///
    /// So B is lower by at least min(c − drained(t, l), B), and this refund reduces the stored backlog by c − drained(t,
    /// l), or to zero. Where that is more than B, nothing of B remains without the charge.
    ///
    /// The refund assumes that the charge drained all the time up to l. The bucket may have been full for a part of that
    /// time, or earlier charges may have drained first, but the state does not tell. Nothing is refunded if the amount
    /// has changed since. (An amount that was changed and changed back while the bucket was full is not noticed.)
    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        // After the clock has stepped back, the drained units are unknown.
        let Some(since) = now.checked_sub(mark.at) else { return };
        let tat = Tat::decode(state, self.amount);
        if tat.amount != self.amount || mark.detail >> 32 != u64::from(self.amount) {
            return;
        }
        let until_last_charge = if tat.is_far() {
            since
        } else {
            let marked = LastChargeTick::from_bits(self.amount, mark.detail as u32);
            tat.last_charge.latest(marked, mark.at, now) - mark.at
        };
        let drained = u128::from(until_last_charge) * u128::from(self.amount);
        self.reduce(state, now, self.units(cost).saturating_sub(drained));
    }

    fn convert_rate(&self, state: &mut CompactState, now: u64) {
        let tat = Tat::decode(state, self.amount);
        // An expired state stays as it is, and never becomes the default: it may be in a table.
        if tat.amount != self.amount && tat.backlog(now) > 0 {
            self.reduce(state, now, 0);
        }
    }
}

impl Gcra {
    /// Returns the time in which a whole bucket comes back, in µs.
    pub(super) fn window(&self) -> u128 {
        self.micros(self.units(self.capacity))
    }

    /// Returns the time until the TAT, in µs.
    pub(super) fn backlog_micros(&self, state: &CompactState, now: u64) -> u128 {
        self.micros(self.backlog(state, now))
    }

    /// Takes `tokens` off the backlog, however long ago they were charged.
    pub(super) fn uncharge(&self, state: &mut CompactState, now: u64, tokens: u64) {
        self.reduce(state, now, self.units(tokens));
    }

    /// Converts tokens to units.
    #[inline]
    fn units(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.interval)
    }

    /// Returns the time in which `units` come back, in µs, rounded up.
    #[inline]
    fn micros(&self, units: u128) -> u128 {
        div_ceil(units, self.amount.into())
    }

    /// Returns the units in use at `now`.
    #[inline]
    fn backlog(&self, state: &CompactState, now: u64) -> u128 {
        self.backlog_of(&Tat::decode(state, self.amount), now)
    }

    /// Returns the units in use at `now` under a TAT.
    #[inline]
    fn backlog_of(&self, tat: &Tat, now: u64) -> u128 {
        let backlog = tat.backlog(now);
        if tat.amount == self.amount { backlog } else { backlog.min(MAX_BACKLOG * u128::from(self.amount)) }
    }

    /// Returns whether `cost` can be charged on top of a backlog.
    #[inline]
    fn availability(&self, backlog: u128, cost: u64) -> Availability {
        match (backlog + self.units(cost)).checked_sub(self.units(self.capacity)) {
            None | Some(0) => Availability::NOW,
            Some(_) if cost > self.capacity => Availability::Never,
            Some(excess) => Availability::After(self.micros(excess)),
        }
    }

    /// Charges `cost` on top of the `backlog` of the `tat` in `state`.
    #[inline(always)]
    fn charge(
        &self,
        state: &mut CompactState,
        tat: &Tat,
        backlog: u128,
        now: u64,
        cost: u64,
    ) -> (ChargeMark, QuotaSnapshot) {
        let last_charge = if backlog == 0 || tat.amount != self.amount {
            LastChargeTick::first(self.amount, now)
        } else {
            tat.last_charge.next(now)
        };
        let backlog = backlog + self.units(cost);
        let reset_after = self.micros(backlog);
        *state = self.encode(backlog, reset_after, now, last_charge);
        let mark = ChargeMark { at: now, detail: u64::from(self.amount) << 32 | u64::from(last_charge.bits()) };
        (mark, self.snapshot_of(backlog, reset_after))
    }

    /// Encodes the state of a backlog that is not 0 and drains in `reset_after` µs.
    #[inline]
    fn encode(&self, backlog: u128, reset_after: u128, now: u64, last_charge: LastChargeTick) -> CompactState {
        // The difference is less than the amount, so computing it modulo 2^32 is exact.
        let rounding = (reset_after as u32).wrapping_mul(self.amount).wrapping_sub(backlog as u32);
        Tat { micros: u128::from(now) + reset_after, rounding, amount: self.amount, last_charge }.encode()
    }

    /// Returns the snapshot of a backlog.
    #[inline]
    fn snapshot_at(&self, backlog: u128) -> QuotaSnapshot {
        match backlog {
            0 => QuotaSnapshot::unused(self.capacity),
            _ => self.snapshot_of(backlog, self.micros(backlog)),
        }
    }

    /// Returns the snapshot of a backlog that is not 0 and drains in `reset_after` µs.
    #[inline(always)]
    fn snapshot_of(&self, backlog: u128, reset_after: u128) -> QuotaSnapshot {
        let used = div_ceil(backlog, self.interval).min(self.capacity.into()) as u64;
        QuotaSnapshot {
            remaining: self.capacity - used,
            more_after: Some(self.micros(backlog - self.units(used - 1))),
            reset_after,
        }
    }

    /// Takes units off the backlog, which is stored at this limit's rate from then on.
    fn reduce(&self, state: &mut CompactState, now: u64, units: u128) {
        let tat = Tat::decode(state, self.amount);
        let is_converted = tat.amount != self.amount;
        let last_charge = if is_converted { LastChargeTick::first(self.amount, now) } else { tat.last_charge };
        let backlog = self.backlog(state, now).saturating_sub(units);
        *state = match backlog {
            0 => CompactState::UNUSED,
            _ => self.encode(backlog, self.micros(backlog), now, last_charge),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn only_a_state_that_counts_is_converted_to_another_rate() {
        let slow = Gcra { capacity: 10, amount: 1, interval: SECOND };
        let fast = Gcra { amount: 2, ..slow };
        let mut state = CompactState::UNUSED;
        slow.commit(&mut state, SECOND, 4);
        let expired = state;
        fast.convert_rate(&mut state, 5 * SECOND);
        assert_eq!(state, expired);
        // Three tokens are still charged, and refill in 1.5 s.
        fast.convert_rate(&mut state, 2 * SECOND);
        assert_eq!(fast.snapshot(&state, 2 * SECOND).reset_after, u128::from(3 * SECOND / 2));
        assert_eq!(state.expires_at, 7 * SECOND / 2);
    }
}
