//! A debt that is paid back evenly: what a continuous token bucket and both leaky buckets share.
//!
//! Tokens that are out of a token bucket, water in a leaky bucket and requests in a queue are the
//! same thing: a debt that grows by what a request costs and is paid at `amount` tokens per
//! `interval`. Counted in `1/interval` of a token, a µs pays `amount` of it, so all is integers.
//! What a key remembers is the instant at which the debt is paid. That is GCRA's "theoretical
//! arrival time" (ITU-T I.371), kept here with its fraction.

use super::full::Full;
use super::ratio::{div_ceil, mul_div_ceil};
#[cfg(feature = "redis")]
use super::twin::{self, Numbers, State};
use super::{Room, Standing};
use crate::record::Record;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Drain {
    /// The largest debt, in tokens.
    pub(super) capacity: u64,
    /// Tokens paid back per interval.
    pub(super) amount: u32,
    /// In µs.
    pub(super) interval: u64,
}

impl Drain {
    /// How long it takes to pay back all there can be, in µs.
    pub(super) fn span(&self) -> u128 {
        mul_div_ceil(self.capacity, self.interval, u64::from(self.amount))
    }

    /// A number of tokens, in `1/interval` of a token.
    #[inline]
    fn units(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.interval)
    }

    /// How long it takes to pay `debt` back, in µs.
    #[inline]
    fn time(&self, debt: u128) -> u128 {
        div_ceil(debt, u64::from(self.amount))
    }

    /// What is owed at `now`.
    #[inline]
    fn debt(&self, record: &Record, now: u64) -> u128 {
        let full = Full::of(record);
        let Some(left) = full.micros.checked_sub(u128::from(now)) else { return 0 };
        (left * u128::from(self.amount)).saturating_sub(u128::from(full.detail))
    }

    #[inline]
    fn record(&self, debt: u128, now: u64) -> Record {
        if debt == 0 {
            return Record::EMPTY;
        }
        let time = self.time(debt);
        let early = time * u128::from(self.amount) - debt;
        Full { micros: u128::from(now) + time, detail: early as u32 }.record()
    }

    #[inline]
    pub(super) fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        let after = self.debt(record, now) + self.units(cost);
        match after.checked_sub(self.units(self.capacity)) {
            None | Some(0) => Room::NOW,
            Some(_) if cost > self.capacity => Room::Never,
            Some(over) => Room::After(self.time(over)),
        }
    }

    /// Takes `cost`. A refund needs to know when.
    #[inline]
    pub(super) fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        let debt = self.debt(record, now) + self.units(cost);
        *record = self.record(debt, now);
        Record { until: now, detail: 0 }
    }

    #[inline]
    pub(super) fn standing(&self, record: &Record, now: u64) -> Standing {
        let debt = self.debt(record, now);
        if debt == 0 {
            return Standing::untouched(self.capacity);
        }
        let taken = div_ceil(debt, self.interval).min(u128::from(self.capacity)) as u64;
        Standing {
            remaining: self.capacity - taken,
            more_after: Some(self.time(debt - self.units(taken - 1))),
            reset_after: self.time(debt),
        }
    }

    /// How long until the debt is paid, in µs.
    pub(super) fn backlog(&self, record: &Record, now: u64) -> u128 {
        self.time(self.debt(record, now))
    }

    /// Gives back what is surely not paid yet of a charge that left `mark`: what would not be, had
    /// time paid this charge before all others.
    ///
    /// What time has paid in the meantime was not free: had the charge not been, time would have
    /// paid something else, or nothing, the bucket being full. Who stood in line before it can't be
    /// known any more, as some of them may have been given back since; to take it for paid last
    /// would give back what was paid already, out of someone else's charge.
    pub(super) fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        // A clock that stepped back can't say what is paid.
        let Some(since) = now.checked_sub(mark.until) else { return };
        let paid = u128::from(since) * u128::from(self.amount);
        self.give_back(record, now, self.units(cost).saturating_sub(paid));
    }

    /// Gives back the last charge, of `cost`, as far as it is not paid yet.
    pub(super) fn refund_last(&self, record: &mut Record, now: u64, cost: u64) {
        self.give_back(record, now, self.units(cost));
    }

    fn give_back(&self, record: &mut Record, now: u64, debt: u128) {
        *record = self.record(self.debt(record, now).saturating_sub(debt), now);
    }
}

#[cfg(feature = "redis")]
impl Drain {
    pub(super) fn letter(&self) -> u8 {
        b'd'
    }

    /// The cost and the amount, then how long it takes to pay back all that leaves room for the cost,
    /// and the cost: to the 1/amount of a µs, so that its twin only adds and compares.
    pub(super) fn numbers(&self, cost: u64) -> Numbers {
        let cost = twin::within(cost, self.capacity);
        let room = self.capacity.checked_sub(cost).map_or([-1.0, 0.0, 0.0], |tokens| self.parts(tokens));
        let numbers = [cost as f64, self.amount.into()].into_iter();
        numbers.chain(room).chain(self.parts(cost)).collect()
    }

    /// How long it takes to pay `tokens` back: 10^9 µs, µs, and 1/amount of a µs.
    fn parts(&self, tokens: u64) -> [f64; 3] {
        let [units, amount] = [self.units(tokens), u128::from(self.amount)];
        let [high, low] = twin::limbs(units / amount);
        [high, low, (units % amount) as f64]
    }

    pub(super) fn mark(&self, mark: &Record) -> State {
        let Full { micros, detail } = Full::of(mark);
        State { micros, counts: [detail, 0] }
    }

    pub(super) fn recall(&self, held: &[State]) -> Option<Record> {
        let record = |held: &State| Full { micros: held.micros, detail: held.counts[0] }.record();
        Some(held.first().map_or(Record::EMPTY, record))
    }
}
