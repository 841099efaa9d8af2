//! The step to which the expiry of a busy bucket's key is rounded up.

/// The step to which a bucket's time to live is rounded up, so that most charges leave the expiry of a busy key
/// unchanged: 1 ms, 2, 5, 10, and so on to 1,000 s.
///
/// All steps divide the 10^9 µs that scripts count in, so that a script needs one comparison to see whether a charge
/// moves the expiry. A key records the index of its own step, since the next charge may be made by a limit of another
/// capacity.
pub(in crate::store::redis) struct TtlQuantum {
    index: u8,
}

/// The steps, in µs.
const STEPS: [f64; 19] =
    [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9];

/// Where a key records the index: above the multiples of 10^9 µs of its instant, which are smaller in any state that
/// records a step.
const INDEX_UNIT: u64 = 1 << 40;

impl TtlQuantum {
    /// Returns the largest step up to `most` µs, or the smallest one.
    pub(super) fn within(most: f64) -> Self {
        Self { index: STEPS[1..].partition_point(|micros| *micros <= most) as u8 }
    }

    /// Returns the two arguments of a script: the recorded index, shifted to its place, and the step in µs.
    pub(super) fn args(&self) -> [f64; 2] {
        [(u64::from(self.index) * INDEX_UNIT) as f64, STEPS[usize::from(self.index)]]
    }

    /// Returns the instant of a key, in µs, without the index.
    pub(super) const fn strip(micros: u128) -> u128 {
        micros % (1_000_000_000 * INDEX_UNIT as u128)
    }

    /// Returns the step, in µs, that a key which holds `micros` has recorded.
    #[cfg(test)]
    pub(in crate::store::redis) fn recorded_in(micros: u128) -> u128 {
        STEPS[(micros / (1_000_000_000 * u128::from(INDEX_UNIT))) as usize] as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_divides_the_unit_of_scripts() {
        assert!(STEPS.is_sorted());
        assert!(STEPS.iter().all(|micros| 1e9 % micros == 0.0), "{STEPS:?}");
    }

    #[test]
    fn the_largest_step_within_the_bound_is_chosen() {
        for (most, micros) in [(0.0, 1e3), (1_999.0, 1e3), (2e3, 2e3), (3.75e6, 2e6), (1e9, 1e9), (1e30, 1e9)] {
            let [index, step] = TtlQuantum::within(most).args();
            assert_eq!(step, micros, "of {most}");
            let stored = index as u128 * 1_000_000_000 + 1_700_000_000_123_456;
            assert_eq!(TtlQuantum::recorded_in(stored) as f64, micros);
            assert_eq!(TtlQuantum::strip(stored), 1_700_000_000_123_456);
        }
    }
}
