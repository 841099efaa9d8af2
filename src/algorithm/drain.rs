//! A debt that is paid back evenly: what a continuous token bucket and both leaky buckets share.
//!
//! Tokens that are out of a token bucket, water in a leaky bucket and requests in a queue are the
//! same thing: a debt that grows by what a request costs and is paid at `amount` tokens per
//! `interval`. Counted in `1/interval` of a token, a µs pays `amount` of it, so all is integers.
//! What a key remembers is the instant at which the debt is paid. That is GCRA's "theoretical
//! arrival time" (ITU-T I.371), kept here with its fraction.

use std::ops::{Add, Div, Mul, Sub};

use super::full::Full;
use super::ratio::mul_div_ceil;
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

/// What a debt is counted in: 64 bits nearly always, which take half the time, or 128.
trait Width:
    Copy + Ord + From<u64> + Into<u128> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// What is surely of this width.
    fn cut(number: u128) -> Self;
}

impl Width for u64 {
    #[inline]
    fn cut(number: u128) -> Self {
        number as Self
    }
}

impl Width for u128 {
    #[inline]
    fn cut(number: u128) -> Self {
        number
    }
}

#[inline]
fn div_ceil<N: Width>(a: N, b: u64) -> N {
    let quotient = a / b.into();
    if quotient * b.into() < a { quotient + 1.into() } else { quotient }
}

impl Drain {
    /// How long it takes to pay back all there can be, in µs.
    pub(super) fn span(&self) -> u128 {
        mul_div_ceil(self.capacity, self.interval, u64::from(self.amount))
    }

    /// Whether the debt at `now` and that of another `cost` are both, and together, under 2^63.
    #[inline(always)]
    fn is_narrow(&self, record: &Record, now: u64, cost: u64) -> bool {
        let left = record.until.saturating_sub(now);
        let owed = u128::from(left) * u128::from(self.amount);
        let most = u128::from(self.capacity) * u128::from(self.interval);
        (owed | most) >> 62 == 0 && cost <= self.capacity && Full::is_near(record)
    }

    /// A number of tokens, in `1/interval` of a token.
    #[inline(always)]
    fn units<N: Width>(&self, tokens: u64) -> N {
        N::from(tokens) * N::from(self.interval)
    }

    /// How long it takes to pay `debt` back, in µs.
    #[inline(always)]
    fn time<N: Width>(&self, debt: N) -> N {
        div_ceil(debt, u64::from(self.amount))
    }

    /// What is owed at `now`.
    #[inline(always)]
    fn debt<N: Width>(&self, record: &Record, now: u64) -> N {
        let full = Full::of(record);
        let Some(left) = full.micros.checked_sub(u128::from(now)) else { return N::from(0) };
        let owed = N::cut(left) * N::from(u64::from(self.amount));
        let early = N::from(u64::from(full.detail));
        owed.max(early) - early
    }

    #[inline(always)]
    fn record<N: Width>(&self, debt: N, now: u64) -> Record {
        if debt == N::from(0) {
            return Record::EMPTY;
        }
        let time = self.time(debt);
        let early: u128 = (time * N::from(u64::from(self.amount)) - debt).into();
        Full { micros: u128::from(now) + time.into(), detail: early as u32 }.record()
    }

    #[inline(always)]
    pub(super) fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        if self.is_narrow(record, now, cost) {
            self.peek_in::<u64>(record, now, cost)
        } else {
            self.peek_in::<u128>(record, now, cost)
        }
    }

    #[inline(always)]
    fn peek_in<N: Width>(&self, record: &Record, now: u64, cost: u64) -> Room {
        let after: N = self.debt::<N>(record, now) + self.units(cost);
        let most = self.units(self.capacity);
        if after <= most {
            Room::NOW
        } else if cost > self.capacity {
            Room::Never
        } else {
            Room::After(self.time(after - most).into())
        }
    }

    /// Takes `cost`. A refund needs to know when.
    #[inline]
    pub(super) fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        self.take(record, now, cost).0
    }

    /// Takes `cost`, and tells what is left then.
    #[inline(always)]
    pub(super) fn take(&self, record: &mut Record, now: u64, cost: u64) -> (Record, Standing) {
        let standing = if self.is_narrow(record, now, cost) {
            self.take_in::<u64>(record, now, cost)
        } else {
            self.take_in::<u128>(record, now, cost)
        };
        (Record { until: now, detail: 0 }, standing)
    }

    #[inline(always)]
    fn take_in<N: Width>(&self, record: &mut Record, now: u64, cost: u64) -> Standing {
        let debt: N = self.debt::<N>(record, now) + self.units(cost);
        *record = self.record(debt, now);
        self.standing_in(debt)
    }

    /// Takes `cost` if there is room, and tells what is left then.
    #[inline(always)]
    pub(super) fn settle<T>(
        &self,
        record: &mut Record,
        now: u64,
        cost: u64,
        tell: impl FnOnce(Room, Record, Standing) -> T,
    ) -> T {
        if self.is_narrow(record, now, cost) {
            let debt = self.debt::<u64>(record, now) + self.units::<u64>(cost);
            if debt <= self.units(self.capacity) {
                *record = self.record(debt, now);
                return tell(Room::NOW, Record { until: now, detail: 0 }, self.standing_in(debt));
            }
        }
        let room = self.peek(record, now, cost);
        let (mark, standing) =
            if room.is_now() { self.take(record, now, cost) } else { (Record::EMPTY, self.standing(record, now)) };
        tell(room, mark, standing)
    }

    #[inline]
    pub(super) fn standing(&self, record: &Record, now: u64) -> Standing {
        if self.is_narrow(record, now, 0) {
            self.standing_in::<u64>(self.debt(record, now))
        } else {
            self.standing_in::<u128>(self.debt(record, now))
        }
    }

    #[inline(always)]
    fn standing_in<N: Width>(&self, debt: N) -> Standing {
        if debt == N::from(0) {
            return Standing::untouched(self.capacity);
        }
        let taken = div_ceil(debt, self.interval).min(N::from(self.capacity)).into() as u64;
        Standing {
            remaining: self.capacity - taken,
            more_after: Some(self.time(debt - self.units(taken - 1)).into()),
            reset_after: self.time(debt).into(),
        }
    }

    /// How long until the debt is paid, in µs.
    pub(super) fn backlog(&self, record: &Record, now: u64) -> u128 {
        if self.is_narrow(record, now, 0) {
            self.time::<u64>(self.debt(record, now)).into()
        } else {
            self.time::<u128>(self.debt(record, now))
        }
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
        self.give_back(record, now, self.units::<u128>(cost).saturating_sub(paid));
    }

    /// Gives back the last charge, of `cost`, as far as it is not paid yet.
    pub(super) fn refund_last(&self, record: &mut Record, now: u64, cost: u64) {
        self.give_back(record, now, self.units(cost));
    }

    fn give_back(&self, record: &mut Record, now: u64, debt: u128) {
        *record = self.record(self.debt::<u128>(record, now).saturating_sub(debt), now);
    }
}

#[cfg(feature = "redis")]
impl Drain {
    pub(super) fn letter(&self) -> u8 {
        b'd'
    }

    /// The cost and the amount, then how long it takes to pay back all that leaves room for the cost,
    /// and the cost: to the 1/amount of a µs, so that its twin only adds and compares.
    pub(super) fn numbers(&self, cost: u64, _: u64) -> Numbers {
        let cost = twin::within(cost, self.capacity);
        let room = self.capacity.checked_sub(cost).map_or([-1.0, 0.0, 0.0], |tokens| self.parts(tokens));
        let numbers = [cost as f64, self.amount.into()].into_iter();
        numbers.chain(room).chain(self.parts(cost)).collect()
    }

    /// How long it takes to pay `tokens` back: 10^9 µs, µs, and 1/amount of a µs.
    fn parts(&self, tokens: u64) -> [f64; 3] {
        let [units, amount] = [self.units::<u128>(tokens), u128::from(self.amount)];
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
