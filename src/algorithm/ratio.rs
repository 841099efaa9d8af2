//! Exact division of products that can pass 64 bits.

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
