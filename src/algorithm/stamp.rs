//! When a bucket was last charged, in the bits that its record has to spare.
//!
//! A record's fraction of a µs takes as many bits as the amount that it is written with. Above it, in the
//! same 32 bits, stand a count of the charges in the tick of the last one, and that tick, modulo as many as
//! there are bits for: two years of them for an amount of 1, nine minutes for 100,000, two seconds for
//! 2^25 − 1. Larger amounts leave no room, and have the stamp 0.

/// A tick is 2^17 µs: 131 ms.
const TICK: u32 = 17;

/// The bits of the count, and what it is from where nobody knows: because there were more, because the
/// bucket had been full or of another rate, or because the clock stepped back.
const COUNT: u32 = 3;
const MANY: u32 = (1 << COUNT) - 1;

/// The most bits of an amount that leave room for a stamp, of which four are ticks.
const WIDEST: u32 = 25;

/// Where stamps stand in the records that are written with an amount.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    /// How many bits the amount takes.
    width: u32,
    /// Those bits.
    below: u32,
}

impl Stamps {
    #[inline(always)]
    pub(super) const fn of(amount: u32) -> Self {
        let width = u32::BITS - amount.leading_zeros();
        Self { width, below: (u32::MAX as u64 >> amount.leading_zeros()) as u32 }
    }

    /// The bits under the stamp.
    #[inline(always)]
    pub(super) fn below(self) -> u32 {
        self.below
    }

    /// The stamp of nobody knows when.
    pub(super) fn unknown(self) -> u32 {
        if self.width > WIDEST { 0 } else { MANY << self.width }
    }

    /// The stamp of a charge at `now`, the first of a bucket that was full or of another rate.
    #[inline(always)]
    pub(super) fn first(self, now: u64) -> u32 {
        if self.width > WIDEST { 0 } else { (tick(now) | MANY) << self.width }
    }

    /// The stamp of a charge at `now` after one of the stamp `before`, whatever stands under that.
    #[inline(always)]
    pub(super) fn next(self, before: u32, now: u64) -> u32 {
        let width = self.width;
        if width > WIDEST {
            return 0;
        }
        let (before, tick) = (before >> width, tick(now));
        let apart = tick.wrapping_sub(before & !MANY) << width;
        let count = match apart {
            0 => ((before & MANY) + 1).min(MANY),
            // All or none: whether the clock stepped back.
            _ => (apart.cast_signed() >> 31).cast_unsigned() & MANY,
        };
        (tick | count) << width
    }

    /// The latest instant up to `now` at which a bucket with the stamp `last` can have been charged after a
    /// charge that left `mark` at `then`: `then` itself where that was the last one.
    ///
    /// Where ticks have gone round since, the latest of those that it can be is taken.
    pub(super) fn last_charge(self, last: u32, mark: u32, then: u64, now: u64) -> u64 {
        let width = self.width;
        if width > WIDEST {
            return now;
        }
        let ago = tick(now).wrapping_sub(last >> width & !MANY) << width >> width >> COUNT;
        match (now >> TICK).checked_sub(ago.into()) {
            Some(at) if at == then >> TICK && last == mark && last >> width & MANY < MANY => then,
            Some(at) if at >= then >> TICK => (((at + 1) << TICK) - 1).min(now),
            // It is not known, or the clock stepped back.
            _ => now,
        }
    }
}

/// The tick of an instant, above a count.
#[inline(always)]
fn tick(now: u64) -> u32 {
    (now >> TICK << COUNT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_charge_that_was_the_last_is_known_for_it() {
        for amount in [1, 100, 100_000, (1 << 25) - 1] {
            let noon = 1_767_225_600 * SECOND;
            let stamps = Stamps::of(amount);
            let first = stamps.first(noon - SECOND / 2);
            let mark = stamps.next(first, noon);
            let until = |last, after| stamps.last_charge(last, mark, noon, noon + after);
            assert_eq!(until(mark, 0), noon);
            assert_eq!(until(mark, SECOND), noon, "{amount}");
            let same_tick = stamps.next(mark, noon + 1);
            let end = until(same_tick, SECOND);
            assert!(end > noon && end - noon < 1 << TICK, "{amount}");
            let later = stamps.next(mark, noon + SECOND);
            assert_eq!(until(later, SECOND), noon + SECOND);
            assert!(until(later, 3 * SECOND / 2) - noon - SECOND < 1 << TICK);
            // Stamps are the same again once ticks have gone round, which tells nobody that it was the last.
            let round = 1 << (32 - stamps.width - COUNT + TICK);
            assert_eq!(stamps.next(first, noon + round), mark);
            assert!(until(mark, round) > noon, "{amount}");
        }
    }

    #[test]
    fn who_was_not_the_last_is_never_taken_for_it() {
        let noon = 1_767_225_600 * SECOND;
        let stamps = Stamps::of(100);
        let mut stamp = stamps.first(noon);
        let mut marks = vec![stamp];
        for _ in 0..20 {
            stamp = stamps.next(stamp, noon);
            assert!(marks.iter().all(|mark| stamps.last_charge(stamp, *mark, noon, noon + 1) > noon));
            marks.push(stamp);
        }
        // The clock goes on and steps back into the same tick.
        let ahead = stamps.next(marks[1], noon + SECOND);
        let back = stamps.next(ahead, noon);
        assert!(marks.iter().all(|mark| stamps.last_charge(back, *mark, noon, noon + 1) > noon));
    }

    #[test]
    fn large_amounts_have_no_stamps() {
        for amount in [1 << 25, u32::MAX] {
            let stamps = Stamps::of(amount);
            assert_eq!([stamps.first(SECOND), stamps.next(0, SECOND), stamps.unknown()], [0; 3]);
            assert_eq!(stamps.last_charge(0, 0, 1, SECOND), SECOND);
        }
        assert_eq!(Stamps::of(u32::MAX).below(), u32::MAX);
        assert_eq!([1, 7, 8].map(|amount| Stamps::of(amount).below()), [1, 7, 15]);
    }
}
