//! Exact division: of products that can pass 64 bits, and by numbers that are known long before.

/// A number to divide by, with its inverse: a division takes the processor several times as long as the
/// multiplication by that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    by: u64,
    /// ⌊(2^64 − 1) / by⌋
    inverse: u64,
}

impl Divisor {
    pub(super) const fn new(by: u64) -> Self {
        Self { by, inverse: u64::MAX / by }
    }

    pub(super) const fn get(self) -> u64 {
        self.by
    }

    /// ⌈a / by⌉, for an `a` under 2^63.
    #[inline(always)]
    pub(super) fn div_ceil(self, a: u64) -> u64 {
        // a / by − a · inverse / 2^64 is at most a / 2^64, which is under 1/2: the quotient is this or the next.
        let quotient = ((u128::from(a) * u128::from(self.inverse)) >> 64) as u64;
        let rest = a - quotient * self.by;
        quotient + u64::from(rest > 0) + u64::from(rest > self.by)
    }
}

/// ⌈a / b⌉
#[inline]
pub(super) fn div_ceil(a: u128, b: u64) -> u128 {
    // A 128-bit division costs several times a 64-bit one, and is hardly ever needed.
    match u64::try_from(a) {
        Ok(a) => u128::from(a.div_ceil(b)),
        Err(_) => a.div_ceil(u128::from(b)),
    }
}

/// ⌊a · b / c⌋
#[inline]
pub(super) fn mul_div(a: u64, b: u64, c: u64) -> u128 {
    match a.checked_mul(b) {
        Some(product) => u128::from(product / c),
        None => u128::from(a) * u128::from(b) / u128::from(c),
    }
}

/// ⌈a · b / c⌉
#[inline]
pub(super) fn mul_div_ceil(a: u64, b: u64, c: u64) -> u128 {
    match a.checked_mul(b) {
        Some(product) => u128::from(product.div_ceil(c)),
        None => (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edges() -> impl Strategy<Value = u64> {
        prop_oneof![1_u64..1 << 63, 1_u64..1_000, (0_u32..63, 0_u64..3).prop_map(|(bit, off)| (1 << bit) + off)]
    }

    proptest! {
        #[test]
        fn an_inverse_divides(a in prop_oneof![Just(0), edges()], by in edges(), times in edges()) {
            let divisor = Divisor::new(by);
            for a in [a, by, by - 1, by.saturating_add(1), by * (times % ((1 << 63) / by).max(1)), (1 << 63) - 1] {
                let a = a.min((1 << 63) - 1);
                prop_assert_eq!(divisor.div_ceil(a), a.div_ceil(by));
            }
        }
    }
}
