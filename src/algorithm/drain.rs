//! A debt that is paid back evenly: what a continuous token bucket and both leaky buckets share.
//!
//! Tokens that are out of a token bucket, water in a leaky bucket and requests in a queue are the
//! same thing: a debt that grows by what a request costs and is paid at `amount` tokens per
//! `interval`. Counted in `1/interval` of a token, a µs pays `amount` of it, so all is integers.
//! What a key remembers is the instant at which the debt is paid. That is GCRA's "theoretical
//! arrival time" (ITU-T I.371), kept here with its fraction, and with the amount by which it was worked
//! out: a limit of another amount finds the same debt in tokens, and its first decision has it paid at
//! its own rate from then on.
//!
//! It also keeps when it was last charged, as far as there is room for it: see [`stamp`](super::stamp) and
//! [`Drain::refund`].

use std::ops::{Add, Mul, Sub};

use super::full::Full;
use super::ratio::{Divisor, div_ceil, mul_div_ceil};
use super::shape::decided_by;
use super::stamp::Stamps;
use super::{Room, Standing};
use crate::record::Record;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// The largest debt, in tokens.
    pub(crate) capacity: u64,
    /// Tokens paid back per interval.
    pub(crate) amount: u32,
    /// In µs.
    pub(crate) interval: u64,
    /// What is worked out once: how to divide by the amount and by the interval,
    by_amount: Divisor,
    by_interval: Divisor,
    /// where stamps stand by the amount,
    stamps: Stamps,
    /// the costs, from 0, that are [narrow](Self::is_narrow), and how long what is owed then takes to pay.
    narrow: u64,
    narrow_span: u64,
}

decided_by!(Drain, itself over Record);

/// What a debt is counted in: 64 bits nearly always, which take half the time, or 128.
trait Width: Copy + Ord + From<u64> + Into<u128> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// Whether a record is near, and of the limit's own rate or paid: see [`Drain::is_narrow`].
    const NARROW: bool;

    /// What is surely of this width.
    fn cut(number: u128) -> Self;

    /// Rounded up.
    fn divided_by(self, divisor: Divisor) -> Self;
}

impl Width for u64 {
    const NARROW: bool = true;

    #[inline]
    fn cut(number: u128) -> Self {
        number as Self
    }

    #[inline(always)]
    fn divided_by(self, divisor: Divisor) -> Self {
        divisor.div_ceil(self)
    }
}

impl Width for u128 {
    const NARROW: bool = false;

    #[inline]
    fn cut(number: u128) -> Self {
        number
    }

    #[inline]
    fn divided_by(self, divisor: Divisor) -> Self {
        div_ceil(self, divisor.get())
    }
}

/// No debt takes longer to pay than 2^32 tokens of which one is paid in 366 days: in µs. It is more where a
/// clock stepped back by far, and would then not fit at a smaller rate.
const LONGEST: u128 = 1_000_000_000 << 47;

impl Drain {
    pub(super) fn new(capacity: u64, amount: u32, interval: u64) -> Self {
        let is_narrow = u128::from(capacity) * u128::from(interval) < 1 << 61;
        Self {
            capacity,
            amount,
            interval,
            by_amount: Divisor::new(amount.into()),
            by_interval: Divisor::new(interval),
            stamps: Stamps::of(amount),
            narrow: if is_narrow { capacity + 1 } else { 0 },
            narrow_span: ((1 << 61) - 1) / u64::from(amount),
        }
    }

    #[inline(always)]
    fn itself(&self) -> &Self {
        self
    }

    /// How long it takes to pay back all there can be, in µs.
    pub(super) fn span(&self) -> u128 {
        mul_div_ceil(self.capacity, self.interval, u64::from(self.amount))
    }

    /// Whether the debt at `now` and that of another `cost` are both under 2^61, so that all that is worked out of
    /// them is under 2^63, and what is owed was written by the limit's own amount.
    #[inline(always)]
    fn is_narrow(&self, record: &Record, now: u64, cost: u64) -> bool {
        if cost >= self.narrow {
            return false;
        }
        let left = record.until.saturating_sub(now);
        // What is far is more than 2^62 µs off.
        left == 0 || (left <= self.narrow_span && record.detail >> 32 == u64::from(self.amount))
    }

    /// What a record says, read by the limit's own amount where its own is not known.
    #[inline(always)]
    fn full(&self, record: &Record) -> Full {
        let full = Full::of(record);
        if Full::is_near(record) {
            return full;
        }
        Full { amount: self.amount, ..full }
    }

    /// A number of tokens, in `1/interval` of a token.
    #[inline(always)]
    fn units<N: Width>(&self, tokens: u64) -> N {
        N::from(tokens) * N::from(self.interval)
    }

    /// How long it takes to pay `debt` back, in µs.
    #[inline(always)]
    fn time<N: Width>(&self, debt: N) -> N {
        debt.divided_by(self.by_amount)
    }

    /// What is owed at `now`.
    #[inline(always)]
    fn debt<N: Width>(&self, record: &Record, now: u64) -> N {
        if N::NARROW {
            let owed = N::from(record.until.saturating_sub(now)) * N::from(u64::from(self.amount));
            let early = N::from(u64::from(record.detail as u32 & self.stamps.below()));
            return owed.max(early) - early;
        }
        let Full { micros, detail, amount } = self.full(record);
        let Some(left) = micros.checked_sub(u128::from(now)) else { return N::from(0) };
        let owed = N::cut(left) * N::from(u64::from(amount));
        let early = if Full::is_near(record) { detail & Stamps::of(amount).below() } else { detail };
        let early = N::from(u64::from(early));
        let debt = owed.max(early) - early;
        if amount == self.amount { debt } else { debt.min(N::cut(LONGEST * u128::from(self.amount))) }
    }

    #[inline(always)]
    fn record<N: Width>(&self, debt: N, now: u64, stamp: u32) -> Record {
        if debt == N::from(0) {
            return Record::EMPTY;
        }
        let time = self.time(debt);
        let early: u128 = (time * N::from(u64::from(self.amount)) - debt).into();
        if N::NARROW {
            // Near, as the debt takes less than 2^62 µs.
            let until = now + time.into() as u64;
            return Record { until, detail: u64::from(self.amount) << 32 | u64::from(stamp | early as u32) };
        }
        let micros = u128::from(now) + time.into();
        let stamp = if Full::is_near_at(micros) { stamp } else { 0 };
        Full { micros, detail: stamp | early as u32, amount: self.amount }.record()
    }

    /// The stamp of a record by the limit's amount.
    #[inline(always)]
    fn stamp(&self, record: &Record) -> u32 {
        if Full::is_near(record) { record.detail as u32 & !self.stamps.below() } else { self.stamps.unknown() }
    }

    /// Whether a record is read by another amount than the limit's.
    #[inline(always)]
    fn is_of_another_rate(&self, record: &Record) -> bool {
        self.full(record).amount != self.amount
    }

    /// Has what is still owed paid at the limit's own rate from now on.
    #[inline(always)]
    pub(super) fn adopt(&self, record: &mut Record, now: u64) {
        if self.is_of_another_rate(record) {
            self.change_rate(record, now);
        }
    }

    #[cold]
    fn change_rate(&self, record: &mut Record, now: u64) {
        let debt = self.debt::<u128>(record, now);
        // Of a bucket that is full, nothing changes.
        if debt > 0 {
            *record = self.record(debt, now, self.stamps.first(now));
        }
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
        if self.is_narrow(record, now, cost) {
            self.take_in::<u64>(record, now, cost)
        } else {
            self.take_in::<u128>(record, now, cost)
        }
    }

    #[inline(always)]
    fn take_in<N: Width>(&self, record: &mut Record, now: u64, cost: u64) -> (Record, Standing) {
        let before: N = self.debt(record, now);
        self.add(record, now, before, cost)
    }

    /// Takes `cost` where so much was owed `before`.
    #[inline(always)]
    fn add<N: Width>(&self, record: &mut Record, now: u64, before: N, cost: u64) -> (Record, Standing) {
        let stamp = if before == N::from(0) || (!N::NARROW && self.is_of_another_rate(record)) {
            self.stamps.first(now)
        } else {
            let last = if N::NARROW { record.detail as u32 } else { self.stamp(record) };
            self.stamps.next(last, now)
        };
        let debt = before + self.units(cost);
        *record = self.record(debt, now, stamp);
        // A refund looks at the amount and the stamp only, which a record that is far does not hold.
        let detail = if N::NARROW || Full::is_near(record) {
            record.detail
        } else {
            u64::from(self.amount) << 32 | u64::from(stamp)
        };
        (Record { until: now, detail }, self.standing_in(debt))
    }

    /// Takes `cost` if there is room and the debt is narrow.
    #[inline(always)]
    pub(super) fn take_at_once(&self, record: &mut Record, now: u64, cost: u64) -> Option<(Room, Record, Standing)> {
        if !self.is_narrow(record, now, cost) {
            return None;
        }
        let before: u64 = self.debt(record, now);
        if before + self.units::<u64>(cost) > self.units(self.capacity) {
            return None;
        }
        let (mark, standing) = self.add(record, now, before, cost);
        Some((Room::NOW, mark, standing))
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
        let taken = debt.divided_by(self.by_interval).min(N::from(self.capacity)).into() as u64;
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

    /// Gives back what is surely not paid yet of a charge that left `mark`: its cost, less what time has
    /// paid from then until the bucket was last charged, as far as that is owed at all.
    ///
    /// What must be left is the debt of a history in which what is given back was never charged. Take the
    /// debt D that is there, D* that of the history without all that was given back before, which D is never
    /// under, and c, charged at t and now to go from that, too. That takes the least of c and of all that D*
    /// has been since t, as c goes unpaid while anything else is owed. From the last charge on, at l, D* has
    /// only been paid, and was never under what it is now. Before, it was never under c − paid(t to l): c was
    /// in it. So the least of c − paid(t to l) and D can be given back, as either D* is at least that much
    /// smaller without c, or nothing is left of D*, and D is over it by what remains.
    ///
    /// What was paid between other charges can't be known any more: who stood in line before c may have been
    /// given back since, and time may have paid for c, for others, or for nothing, the bucket being full.
    /// Nor is it known at which rate, if the amount has changed since: then nothing is given back, unless
    /// nothing was decided since. (One that has changed and changed back unseen, because the bucket was full
    /// in between, is taken for the same.)
    pub(super) fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        // A clock that stepped back can't say what is paid.
        let Some(since) = now.checked_sub(mark.until) else { return };
        let marked = (mark.detail >> 32) as u32;
        let amount = self.full(record).amount;
        let unpaid_from = if Full::is_near(record) && amount == marked {
            let stamps = Stamps::of(amount);
            let [last, mark_stamp] = [record.detail, mark.detail].map(|detail| detail as u32 & !stamps.below());
            stamps.last_charge(last, mark_stamp, mark.until, now) - mark.until
        } else {
            since
        };
        // What is given back changes no rate.
        if amount != marked || amount != self.amount {
            return;
        }
        let paid = u128::from(unpaid_from) * u128::from(self.amount);
        self.give_back(record, now, self.units::<u128>(cost).saturating_sub(paid));
    }

    /// Gives back the last charge, of `cost`, as far as it is not paid yet.
    pub(super) fn refund_last(&self, record: &mut Record, now: u64, cost: u64) {
        self.give_back(record, now, self.units(cost));
    }

    /// Whether both say the same, whenever they were last charged.
    pub(super) fn is_same(&self, record: &Record, other: &Record) -> bool {
        let full = self.full(record);
        let ignored = if Full::is_near(record) { !Stamps::of(full.amount).below() } else { 0 };
        record.until == other.until && (record.detail ^ other.detail) & !u64::from(ignored) == 0
    }

    /// The stamp of a charge at an unknown instant.
    #[allow(dead_code, reason = "for stores outside this process")]
    pub(crate) fn unknown_stamp(&self) -> u32 {
        self.stamps.unknown()
    }

    fn give_back(&self, record: &mut Record, now: u64, debt: u128) {
        let stamp = if self.is_of_another_rate(record) { self.stamps.first(now) } else { self.stamp(record) };
        *record = self.record(self.debt::<u128>(record, now).saturating_sub(debt), now, stamp);
    }
}
