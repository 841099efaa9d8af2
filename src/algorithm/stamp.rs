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

/// How many bits an amount takes.
#[inline(always)]
fn width(amount: u32) -> u32 {
    32 - amount.leading_zeros()
}

/// The bits under the stamp.
#[inline(always)]
pub(super) fn below(amount: u32) -> u32 {
    (u64::from(u32::MAX) >> amount.leading_zeros()) as u32
}

/// The stamp of nobody knows when.
pub(super) fn unknown(amount: u32) -> u32 {
    let width = width(amount);
    if width > WIDEST { 0 } else { MANY << width }
}

/// The stamp of a charge at `now`, the first of a bucket that was full or of another rate.
#[inline(always)]
pub(super) fn first(amount: u32, now: u64) -> u32 {
    let width = width(amount);
    if width > WIDEST { 0 } else { (tick(now) | MANY) << width }
}

/// The stamp of a charge at `now` after one of the stamp `before`, whatever stands under that.
#[inline(always)]
pub(super) fn next(before: u32, amount: u32, now: u64) -> u32 {
    let width = width(amount);
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

/// The tick of an instant, above a count.
#[inline(always)]
fn tick(now: u64) -> u32 {
    (now >> TICK << COUNT) as u32
}

/// The latest instant up to `now` at which a bucket with the stamp `last` can have been charged after a
/// charge that left `mark` at `then`: `then` itself where that was the last one.
///
/// Where ticks have gone round since, the latest of those that it can be is taken.
pub(super) fn last_charge(last: u32, mark: u32, amount: u32, then: u64, now: u64) -> u64 {
    let width = width(amount);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_charge_that_was_the_last_is_known_for_it() {
        for amount in [1, 100, 100_000, (1 << 25) - 1] {
            let noon = 1_767_225_600 * SECOND;
            let first = first(amount, noon - SECOND / 2);
            let mark = next(first, amount, noon);
            let until = |last, after| last_charge(last, mark, amount, noon, noon + after);
            assert_eq!(until(mark, 0), noon);
            assert_eq!(until(mark, SECOND), noon, "{amount}");
            let same_tick = next(mark, amount, noon + 1);
            let end = until(same_tick, SECOND);
            assert!(end > noon && end - noon < 1 << TICK, "{amount}");
            let later = next(mark, amount, noon + SECOND);
            assert_eq!(until(later, SECOND), noon + SECOND);
            assert!(until(later, 3 * SECOND / 2) - noon - SECOND < 1 << TICK);
            // Stamps are the same again once ticks have gone round, which tells nobody that it was the last.
            let round = 1 << (32 - width(amount) - COUNT + TICK);
            assert_eq!(next(first, amount, noon + round), mark);
            assert!(until(mark, round) > noon, "{amount}");
        }
    }

    #[test]
    fn who_was_not_the_last_is_never_taken_for_it() {
        let noon = 1_767_225_600 * SECOND;
        let mut stamp = first(100, noon);
        let mut marks = vec![stamp];
        for _ in 0..20 {
            stamp = next(stamp, 100, noon);
            assert!(marks.iter().all(|mark| last_charge(stamp, *mark, 100, noon, noon + 1) > noon));
            marks.push(stamp);
        }
        // The clock goes on and steps back into the same tick.
        let ahead = next(marks[1], 100, noon + SECOND);
        let back = next(ahead, 100, noon);
        assert!(marks.iter().all(|mark| last_charge(back, *mark, 100, noon, noon + 1) > noon));
    }

    #[test]
    fn large_amounts_have_no_stamps() {
        for amount in [1 << 25, u32::MAX] {
            assert_eq!([first(amount, SECOND), next(0, amount, SECOND), unknown(amount)], [0; 3]);
            assert_eq!(last_charge(0, 0, amount, 1, SECOND), SECOND);
        }
        assert_eq!(below(u32::MAX), u32::MAX);
        assert_eq!([below(1), below(7), below(8)], [1, 7, 15]);
    }
}
