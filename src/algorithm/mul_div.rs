//! Exact multiplication and division, of products that may exceed 64 bits. A quotient beyond 64 bits is `u64::MAX`.

/// ⌈a / b⌉
#[inline]
pub(super) fn div_ceil(a: u128, b: u64) -> u64 {
    // Nearly all dividends fit into 64 bits, whose division is one instruction.
    u64::try_from(a).map_or_else(|_| div_ceil_wide(a, b), |a| a.div_ceil(b))
}

#[cold]
fn div_ceil_wide(a: u128, b: u64) -> u64 {
    u64::try_from(a.div_ceil(b.into())).unwrap_or(u64::MAX)
}

/// ⌊a · b / c⌋
pub(super) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    u64::try_from(product).map_or_else(|_| mul_div_wide(product, c), |product| product / c)
}

#[cold]
fn mul_div_wide(product: u128, c: u64) -> u64 {
    u64::try_from(product / u128::from(c)).unwrap_or(u64::MAX)
}

/// ⌈a · b / c⌉
pub(super) fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    div_ceil(u128::from(a) * u128::from(b), c)
}
