//! To how many µs the expiry of a busy bucket's key is rounded up.

/// To how many µs the time to live of a key is rounded up, by its grade: 1 ms, 2, 5, 10, and so on to 1,000 s. All are
/// parts of the 10^9 µs that scripts count in, which see quickly that a charge leaves the expiry that there is.
///
/// A key says of which grade its own is, as the next charge may be by a limit of another size.
pub(crate) struct Grain {
    grade: u8,
}

/// In µs, each by its grade.
const GRAINS: [f64; 19] =
    [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9];

/// What a key has for each grade in its count of 10^9 µs, which instants don't reach that leave room for it.
const GRADE: u64 = 1 << 40;

impl Grain {
    /// The largest that is no more than `most` µs, or the smallest.
    pub(super) fn within(most: f64) -> Self {
        Self { grade: GRAINS[1..].partition_point(|micros| *micros <= most) as u8 }
    }

    /// As the script has it: what it adds for the grade, and the µs.
    pub(super) fn numbers(&self) -> [f64; 2] {
        [(u64::from(self.grade) * GRADE) as f64, GRAINS[usize::from(self.grade)]]
    }

    /// The instant of a key, in µs, less its grade.
    pub(super) const fn taken_off(micros: u128) -> u128 {
        micros % (1_000_000_000 * GRADE as u128)
    }

    /// That of the key which holds `micros`, in µs.
    #[cfg(test)]
    pub(crate) fn micros_of(micros: u128) -> u128 {
        GRAINS[(micros / (1_000_000_000 * u128::from(GRADE))) as usize] as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_divide_what_scripts_count_in() {
        assert!(GRAINS.is_sorted());
        assert!(GRAINS.iter().all(|micros| 1e9 % micros == 0.0), "{GRAINS:?}");
    }

    #[test]
    fn it_is_within_what_is_asked_for() {
        for (most, micros) in [(0.0, 1e3), (1_999.0, 1e3), (2e3, 2e3), (3.75e6, 2e6), (1e9, 1e9), (1e30, 1e9)] {
            let [grade, number] = Grain::within(most).numbers();
            assert_eq!(number, micros, "of {most}");
            let held = grade as u128 * 1_000_000_000 + 1_700_000_000_123_456;
            assert_eq!(Grain::micros_of(held) as f64, micros);
            assert_eq!(Grain::taken_off(held), 1_700_000_000_123_456);
        }
    }
}
