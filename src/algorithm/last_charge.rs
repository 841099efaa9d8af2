//! The time of a bucket's last charge, in the spare bits of its state.

/// The tick of a bucket's last charge, and the number of charges in that tick. A refund compares them with those of its
/// charge, to find out whether its charge was the last one.
///
/// They share a 32-bit word with the rounding of the TAT, which takes as many bits as the limit's amount has:
///
/// ```text
/// | tick (29 − n bits) | count (3 bits) | rounding (n bits) |
/// ```
///
/// A tick is 2^17 µs (131 ms), modulo the bits that remain for it. So ticks recur after two years for an amount of 1,
/// after nine minutes for 100,000, and after two seconds for 2^25 − 1. With a larger amount, there are no bits for a
/// tick.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LastChargeTick {
    /// The tick and the count, at their position in the word.
    bits: u32,
    /// The bits of the rounding below them.
    rounding_bits: u32,
}

/// A tick is 2^17 µs.
const TICK_SHIFT: u32 = 17;

const COUNT_BITS: u32 = 3;

/// The count if it is not known: after more charges, the first charge of a full bucket or of one of another rate, or a
/// clock that stepped back.
const UNKNOWN_COUNT: u32 = (1 << COUNT_BITS) - 1;

/// The most bits of an amount that leave room for the count and four bits of the tick.
const MAX_ROUNDING_BITS: u32 = 25;

impl LastChargeTick {
    #[inline]
    fn new(rounding_bits: u32, tick_and_count: u32) -> Self {
        Self {
            bits: if rounding_bits > MAX_ROUNDING_BITS { 0 } else { tick_and_count << rounding_bits },
            rounding_bits,
        }
    }

    /// Creates the tick of a charge at an unknown instant.
    #[inline]
    pub(crate) fn unknown(amount: u32) -> Self {
        Self::new(rounding_bits(amount), UNKNOWN_COUNT)
    }

    /// Creates the tick of the first charge of a full bucket, or of one that another rate has written.
    #[inline]
    pub(super) fn first(amount: u32, now: u64) -> Self {
        Self::new(rounding_bits(amount), tick(now) | UNKNOWN_COUNT)
    }

    /// Reads the upper bits of a word.
    #[inline]
    pub(super) fn from_bits(amount: u32, word: u32) -> Self {
        let rounding_bits = rounding_bits(amount);
        let rounding = (1_u64 << rounding_bits) - 1;
        Self { bits: word & !(rounding as u32), rounding_bits }
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the tick, above three bits of zeros, and the count.
    #[inline]
    fn parts(self) -> (u32, u32) {
        let shifted = self.bits >> self.rounding_bits;
        (shifted & !UNKNOWN_COUNT, shifted & UNKNOWN_COUNT)
    }

    /// Returns the tick of a charge at `now` that follows this one.
    #[inline]
    pub(super) fn next(self, now: u64) -> Self {
        if self.rounding_bits > MAX_ROUNDING_BITS {
            return self;
        }
        let (last, count) = self.parts();
        let count = match (tick(now).wrapping_sub(last) << self.rounding_bits).cast_signed() {
            0 => (count + 1).min(UNKNOWN_COUNT),
            1.. => 0,
            // The clock has stepped back.
            _ => UNKNOWN_COUNT,
        };
        Self { bits: (tick(now) | count) << self.rounding_bits, ..self }
    }

    /// Returns the latest possible instant of the last charge, which this is, given the mark of a charge at `then`. It
    /// is `then` if the marked charge was certainly the last one, and otherwise the end of the last charge's tick, but
    /// at most `now`. If ticks have recurred since, it is the latest instant that the tick may stand for.
    pub(super) fn latest(self, marked: Self, then: u64, now: u64) -> u64 {
        if self.rounding_bits > MAX_ROUNDING_BITS {
            return now;
        }
        let (last, count) = self.parts();
        // Modulo the bits of the tick: the others are shifted out.
        let ago = tick(now).wrapping_sub(last) << self.rounding_bits >> self.rounding_bits >> COUNT_BITS;
        match (now >> TICK_SHIFT).checked_sub(ago.into()) {
            Some(at) if at == then >> TICK_SHIFT && self == marked && count < UNKNOWN_COUNT => then,
            Some(at) if at >= then >> TICK_SHIFT => (((at + 1) << TICK_SHIFT) - 1).min(now),
            // It is not known, or the clock has stepped back.
            _ => now,
        }
    }
}

/// Returns the number of significant bits of an amount.
#[inline]
fn rounding_bits(amount: u32) -> u32 {
    u32::BITS - amount.leading_zeros()
}

/// Returns the tick of an instant, above a count of 0.
#[inline]
fn tick(now: u64) -> u32 {
    (now >> TICK_SHIFT << COUNT_BITS) as u32
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
            assert!(end > NOON && end - NOON < 1 << TICK_SHIFT, "{amount}");
            let later = mark.next(NOON + SECOND);
            assert_eq!(latest(later, SECOND), NOON + SECOND);
            assert!(latest(later, 3 * SECOND / 2) - NOON - SECOND < 1 << TICK_SHIFT);
            // After ticks wrap around, the same bits no longer identify the last charge.
            let round = 1 << (32 - rounding_bits(amount) - COUNT_BITS + TICK_SHIFT);
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
