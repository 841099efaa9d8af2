//! Exact division: of products that can pass 64 bits, and by numbers that are known long before.

/// A number to divide by, from 1, with its inverse: a division takes the processor several times as long as the
/// multiplication by that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    /// 2 · (by − 1): what rounds up, doubled as the number that is divided.
    above: u64,
    /// ⌊2^(63 + shift) / by⌋ + 1
    inverse: u64,
    /// ⌈log2(by)⌉
    shift: u32,
}

impl Divisor {
    /// The largest sum of a number that is divided and of the divisor.
    const MOST: u64 = 1 << 63;

    pub(super) const fn new(by: u64) -> Self {
        let shift = u64::BITS - (by - 1).leading_zeros();
        Self { above: (by - 1) << 1, inverse: ((1 << (63 + shift)) / by as u128 + 1) as u64, shift }
    }

    pub(super) const fn get(self) -> u64 {
        (self.above >> 1) + 1
    }

    /// ⌈a / by⌉, for an `a` with `a + by` up to 2^63. The inverse is too large by less than 1 / 2^63 of a by-th, which
    /// adds up to less than what any quotient of such an `a` is under the next (Granlund and Montgomery, "Division by
    /// Invariant Integers using Multiplication", 1994).
    #[inline(always)]
    pub(super) fn div_ceil(self, a: u64) -> u64 {
        debug_assert!(a <= Self::MOST - self.get());
        let doubled = (a << 1) + self.above;
        ((u128::from(doubled) * u128::from(self.inverse)) >> 64) as u64 >> self.shift
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
            let by = by.min(Divisor::MOST);
            let divisor = Divisor::new(by);
            let most = Divisor::MOST - by.min(Divisor::MOST);
            let multiple = by * (times % ((1 << 63) / by).max(1));
            for a in [a, by, by - 1, by + 1, multiple, multiple + 1, most - most % by, most] {
                let a = a.min(most);
                prop_assert_eq!(divisor.div_ceil(a), a.div_ceil(by));
            }
        }
    }
}
