//! When a bucket was last charged, in the bits that its state has to spare.

/// The time of a bucket's last charge, to 131 ms, and how many charges were made in that time: what tells a refund
/// whether its charge was the last one.
///
/// It stands in the bits of a 32-bit word above those that the fraction of a µs needs, which are as many as the limit's
/// amount has. The lowest three of its bits count the charges in the tick of the last one; the others are that
/// tick, modulo as many as there are bits for: ticks come round after two years for an amount of 1, after nine minutes
/// for 100,000, and after two seconds for 2^25 − 1. Larger amounts leave no room, and have a tick of 0 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LastChargeTick {
    /// In its place in the word.
    bits: u32,
    /// The bits below it.
    width: u32,
}

/// A tick is 2^17 µs: 131 ms.
const TICK: u32 = 17;

/// The bits of the count, which is `MANY` where it is not known: after more charges, the first charge of a full bucket
/// or of one of another rate, or a clock that stepped back.
const COUNT: u32 = 3;
const MANY: u32 = (1 << COUNT) - 1;

/// The most bits of an amount that leave room: three for the count, and four for the tick.
const WIDEST: u32 = 25;

impl LastChargeTick {
    #[inline]
    fn new(width: u32, tick_and_count: u32) -> Self {
        Self { bits: if width > WIDEST { 0 } else { tick_and_count << width }, width }
    }

    /// A charge at an unknown instant.
    #[inline]
    pub(crate) fn unknown(amount: u32) -> Self {
        Self::new(width(amount), MANY)
    }

    /// The first charge of a full bucket, or of one that another rate has written.
    #[inline]
    pub(super) fn first(amount: u32, now: u64) -> Self {
        Self::new(width(amount), tick(now) | MANY)
    }

    /// Reads a word whose lower bits are something else.
    #[inline]
    pub(super) fn from_bits(amount: u32, word: u32) -> Self {
        let width = width(amount);
        let below = (1_u64 << width) - 1;
        Self { bits: word & !(below as u32), width }
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.bits
    }

    /// The tick, above three bits of zeros, and the count, if there is room for them.
    #[inline]
    fn parts(self) -> (u32, u32) {
        let shifted = self.bits >> self.width;
        (shifted & !MANY, shifted & MANY)
    }

    /// A charge at `now` that follows this one.
    #[inline]
    pub(super) fn next(self, now: u64) -> Self {
        if self.width > WIDEST {
            return self;
        }
        let (last, count) = self.parts();
        let count = match (tick(now).wrapping_sub(last) << self.width).cast_signed() {
            0 => (count + 1).min(MANY),
            1.. => 0,
            // The clock has stepped back.
            _ => MANY,
        };
        Self { bits: (tick(now) | count) << self.width, ..self }
    }

    /// The latest instant up to `now` that may be this last charge's, where an earlier charge was `marked` at `then`:
    /// `then` itself, if that certainly was the last one.
    ///
    /// If ticks have come round since, the latest instant that they may stand for.
    pub(super) fn latest(self, marked: Self, then: u64, now: u64) -> u64 {
        if self.width > WIDEST {
            return now;
        }
        let (last, count) = self.parts();
        let ago = tick(now).wrapping_sub(last) << self.width >> self.width >> COUNT;
        match (now >> TICK).checked_sub(ago.into()) {
            Some(at) if at == then >> TICK && self == marked && count < MANY => then,
            Some(at) if at >= then >> TICK => (((at + 1) << TICK) - 1).min(now),
            // It is not known, or the clock has stepped back.
            _ => now,
        }
    }
}

/// Returns the number of significant bits of an amount.
#[inline]
fn width(amount: u32) -> u32 {
    u32::BITS - amount.leading_zeros()
}

/// The tick of an instant, above a count.
#[inline]
fn tick(now: u64) -> u32 {
    (now >> TICK << COUNT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const NOON: u64 = 1_767_225_600 * SECOND;

    #[test]
    fn the_last_charge_is_recognised() {
        for amount in [1, 100, 100_000, (1 << 25) - 1] {
            let first = LastChargeTick::first(amount, NOON - SECOND / 2);
            let mark = first.next(NOON);
            let latest = |last: LastChargeTick, after| last.latest(mark, NOON, NOON + after);
            assert_eq!(latest(mark, 0), NOON);
            assert_eq!(latest(mark, SECOND), NOON, "{amount}");
            let end = latest(mark.next(NOON + 1), SECOND);
            assert!(end > NOON && end - NOON < 1 << TICK, "{amount}");
            let later = mark.next(NOON + SECOND);
            assert_eq!(latest(later, SECOND), NOON + SECOND);
            assert!(latest(later, 3 * SECOND / 2) - NOON - SECOND < 1 << TICK);
            // Once ticks have come round, the same bits no longer identify the last charge.
            let round = 1 << (32 - width(amount) - COUNT + TICK);
            assert_eq!(first.next(NOON + round), mark);
            assert!(latest(mark, round) > NOON, "{amount}");
        }
    }

    #[test]
    fn an_earlier_charge_is_never_taken_for_the_last() {
        let mut last = LastChargeTick::first(100, NOON);
        let mut marks = vec![last];
        for _ in 0..20 {
            last = last.next(NOON);
            assert!(marks.iter().all(|mark| last.latest(*mark, NOON, NOON + 1) > NOON));
            marks.push(last);
        }
        // The clock advances, and steps back into the same tick.
        let back = marks[1].next(NOON + SECOND).next(NOON);
        assert!(marks.iter().all(|mark| back.latest(*mark, NOON, NOON + 1) > NOON));
    }

    #[test]
    fn large_amounts_leave_no_room() {
        for amount in [1 << 25, u32::MAX] {
            let ticks = [LastChargeTick::first(amount, SECOND), LastChargeTick::unknown(amount)];
            for tick in ticks.into_iter().chain([ticks[0].next(SECOND)]) {
                assert_eq!(tick.bits(), 0);
                assert_eq!(tick.latest(tick, 1, SECOND), SECOND);
            }
        }
    }

    #[test]
    fn lower_bits_are_left_out() {
        let read = |amount| LastChargeTick::from_bits(amount, u32::MAX).bits();
        assert_eq!([1, 7, 8, u32::MAX].map(read), [!1, !7, !15, 0]);
    }
}
