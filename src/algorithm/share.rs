//! One node's share of a limit, where several keep to it without knowing of each other.

use super::ratio::mul_div_ceil;
use crate::quota::LONGEST;

/// The largest number of tokens, at least 1, that `parts` nodes can have each of `tokens`.
pub(super) const fn tokens(tokens: u32, parts: u32) -> u32 {
    match tokens / parts {
        0 => 1,
        share => share,
    }
}

/// A share of `limit` tokens in each `period` µs. All shares of a period together are no more than the
/// limit, and where that leaves less than a token each, its period is as many whole ones as make up
/// for it: windows keep their edges, and divide into as many buckets.
pub(super) const fn window(limit: u32, period: u64, parts: u32) -> (u32, u64) {
    let periods = parts.div_ceil(limit) as u64;
    let most = LONGEST / period;
    (tokens(limit, parts), period * if periods < most { periods } else { most })
}

/// A share of a rate of `amount` tokens per `interval` µs: exact, in an interval that is as many times
/// as long, unless that would be longer than there can be.
pub(super) fn rate(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    let common = gcd(amount, parts);
    match interval.checked_mul(u64::from(parts / common)) {
        Some(interval) if interval <= LONGEST => (amount / common, interval),
        _ => {
            let tokens = u128::from(amount) * u128::from(LONGEST) / (u128::from(interval) * u128::from(parts));
            // No more than `amount`: the interval is the longest at most.
            ((tokens as u32).max(1), LONGEST)
        }
    }
}

/// A share of a rate that comes in steps of `amount` tokens, each `interval` µs: whole tokens, in an
/// interval that keeps the rate, to the µs.
pub(super) fn steps(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    let share = tokens(amount, parts);
    let interval = mul_div_ceil(interval, u64::from(share) * u64::from(parts), u64::from(amount));
    (share, u64::try_from(interval).unwrap_or(LONGEST).min(LONGEST))
}

/// As many tokens and `percent` more, rounded down; as many as there can be, at most.
pub(super) const fn raised(tokens: u32, percent: u32) -> u32 {
    let more = tokens as u64 * percent as u64 / 100;
    let all = tokens as u64 + more;
    if all > u32::MAX as u64 { u32::MAX } else { all as u32 }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_never_over() {
        assert_eq!(window(10, 60, 1), (10, 60));
        assert_eq!(window(10, 60, 4), (2, 60));
        assert_eq!(window(3, 60, 4), (1, 120));
        assert_eq!(window(1, 60, 4), (1, 240));
        assert_eq!(window(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(window(1, LONGEST / 3 - 1, 4), (1, (LONGEST / 3 - 1) * 3));
    }

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate(10, 60, 1), (10, 60));
        assert_eq!(rate(10, 60, 4), (5, 120));
        assert_eq!(rate(7, 60, 4), (7, 240));
        assert_eq!(rate(8, LONGEST, 4), (2, LONGEST));
        assert_eq!(rate(7, LONGEST, 4), (1, LONGEST));
        assert_eq!(rate(u32::MAX, LONGEST, 2), (u32::MAX / 2, LONGEST));
        assert_eq!(rate(1, LONGEST, u32::MAX), (1, LONGEST));
    }

    #[test]
    fn steps_keep_the_rate() {
        assert_eq!(steps(10, 60, 1), (10, 60));
        assert_eq!(steps(10, 60, 4), (2, 48));
        assert_eq!(steps(3, 60, 4), (1, 80));
        assert_eq!(steps(7, 10, 3), (2, 9));
        assert_eq!(steps(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(steps(u32::MAX, LONGEST, 1), (u32::MAX, LONGEST));
    }
}
