//! The size of a limit, and how it is divided among processes or raised.

use super::mul_div::mul_div_ceil;
use crate::validation::LONGEST;

/// The tokens of a limit: those of a window, or the capacity and the amount of a bucket.
pub(crate) type Size = [u32; 2];

/// Returns the largest whole share of `tokens` that each of `parts` processes can have, at least 1.
pub(super) const fn share_of_tokens(tokens: u32, parts: u32) -> u32 {
    match tokens / parts {
        0 => 1,
        share => share,
    }
}

/// Returns one of `parts` shares of `limit` tokens per `period` µs. Together, the shares never exceed the limit: if
/// there is less than a token for each, the period of a share is several whole periods, so that windows keep their
/// boundaries and divide into as many buckets.
pub(super) const fn share_of_window(limit: u32, period: u64, parts: u32) -> (u32, u64) {
    let periods = parts.div_ceil(limit) as u64;
    let most = LONGEST / period;
    (share_of_tokens(limit, parts), period * if periods < most { periods } else { most })
}

/// Returns one of `parts` shares of a bucket that refills or drains continuously: its capacity, its amount, and its
/// interval in µs.
pub(super) fn share_of_bucket([capacity, amount]: Size, interval: u64, parts: u32) -> (u32, u32, u64) {
    let (amount, interval) = share_of_rate(amount, interval, parts);
    (share_of_tokens(capacity, parts), amount, interval)
}

/// Returns one of `parts` shares of `amount` tokens per `interval` µs: exact, by a multiple of the interval, unless that
/// would exceed the longest interval. The interval is the same for all amounts, so that usage survives their changes.
fn share_of_rate(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    match interval.checked_mul(parts.into()) {
        Some(interval) if interval <= LONGEST => (amount, interval),
        _ => {
            let tokens = u128::from(amount) * u128::from(LONGEST) / (u128::from(interval) * u128::from(parts));
            // At most `amount`, as no interval is longer than the longest.
            ((tokens as u32).max(1), LONGEST)
        }
    }
}

/// Returns one of `parts` shares of a refill of `amount` tokens every `interval` µs: whole tokens, at an interval that
/// keeps the rate, rounded up to µs.
pub(super) fn share_of_refill(amount: u32, interval: u64, parts: u32) -> (u32, u64) {
    let share = share_of_tokens(amount, parts);
    let interval = mul_div_ceil(interval, u64::from(share) * u64::from(parts), u64::from(amount));
    (share, interval.min(LONGEST))
}

/// Returns `tokens` and `percent` more, rounded down and at most `most`, but never less than `tokens`.
pub(super) fn raised(tokens: u32, percent: u32, most: u64) -> u32 {
    let tokens = u64::from(tokens);
    (tokens + tokens * u64::from(percent) / 100).min(most).min(u32::MAX.into()).max(tokens) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_window_never_exceed_it() {
        assert_eq!(share_of_window(10, 60, 1), (10, 60));
        assert_eq!(share_of_window(10, 60, 4), (2, 60));
        assert_eq!(share_of_window(3, 60, 4), (1, 120));
        assert_eq!(share_of_window(1, 60, 4), (1, 240));
        assert_eq!(share_of_window(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(share_of_window(1, LONGEST / 3 - 1, 4), (1, (LONGEST / 3 - 1) * 3));
    }

    #[test]
    fn shares_of_a_rate_are_exact() {
        assert_eq!(share_of_rate(10, 60, 1), (10, 60));
        assert_eq!(share_of_rate(10, 60, 4), (10, 240));
        assert_eq!(share_of_rate(7, 60, 4), (7, 240));
        assert_eq!(share_of_rate(8, LONGEST, 4), (2, LONGEST));
        assert_eq!(share_of_rate(7, LONGEST, 4), (1, LONGEST));
        assert_eq!(share_of_rate(u32::MAX, LONGEST, 2), (u32::MAX / 2, LONGEST));
        assert_eq!(share_of_rate(1, LONGEST, u32::MAX), (1, LONGEST));
    }

    #[test]
    fn shares_of_a_refill_keep_the_rate() {
        assert_eq!(share_of_refill(10, 60, 1), (10, 60));
        assert_eq!(share_of_refill(10, 60, 4), (2, 48));
        assert_eq!(share_of_refill(3, 60, 4), (1, 80));
        assert_eq!(share_of_refill(7, 10, 3), (2, 9));
        assert_eq!(share_of_refill(1, LONGEST, u32::MAX), (1, LONGEST));
        assert_eq!(share_of_refill(u32::MAX, LONGEST, 1), (u32::MAX, LONGEST));
    }
}
