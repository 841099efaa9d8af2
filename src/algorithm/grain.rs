//! To how many µs Redis keeps what is piled up.

/// To how many µs the time to live of a key is rounded up, by its grade: 1 ms, 2, 5, 10, and so on to 1,000 s. All are
/// parts of the 10^9 µs that scripts count in, which see quickly that a charge leaves the expiry that there is.
///
/// A key says of which grade its own is, as the next charge may be by a limit of another size.
pub(crate) struct Grain {
    grade: u8,
    micros: f64,
}

/// What a key has for each grade in its count of 10^9 µs, which instants don't reach that leave room for it.
const GRADE: u64 = 1 << 40;

impl Grain {
    const FINEST: Self = Self { grade: 0, micros: 1_000.0 };
    const GRADES: u8 = 19;

    /// The largest that is no more than `most` µs.
    pub(super) fn within(most: f64) -> Self {
        let mut grain = Self::FINEST;
        while grain.grade + 1 < Self::GRADES && grain.coarser().micros <= most {
            grain = grain.coarser();
        }
        grain
    }

    fn coarser(&self) -> Self {
        let times = if self.grade % 3 == 1 { 2.5 } else { 2.0 };
        Self { grade: self.grade + 1, micros: self.micros * times }
    }

    /// As the script has it: what it adds for the grade, and the µs.
    pub(super) fn numbers(&self) -> [f64; 2] {
        [f64::from(self.grade) * GRADE as f64, self.micros]
    }

    /// The instant of a key, in µs, less its grade.
    pub(super) const fn taken_off(micros: u128) -> u128 {
        micros % (1_000_000_000 * GRADE as u128)
    }

    /// Of the key that holds `micros`.
    #[cfg(test)]
    pub(crate) fn micros_of(micros: u128) -> u128 {
        let grade = micros / (1_000_000_000 * u128::from(GRADE));
        (0..grade).fold(Self::FINEST, |grain, _| grain.coarser()).micros as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_divide_what_scripts_count_in() {
        let grains: Vec<f64> = (0..Grain::GRADES)
            .map(|grade| Grain::micros_of(u128::from(grade) * (1_000_000_000 << 40)) as f64)
            .collect();
        assert_eq!(grains[..6], [1e3, 2e3, 5e3, 1e4, 2e4, 5e4]);
        assert_eq!(grains.last(), Some(&1e9));
        assert!(grains.iter().all(|grain| 1e9 % grain == 0.0), "{grains:?}");
    }

    #[test]
    fn it_is_within_what_is_asked_for() {
        for (most, micros) in [(0.0, 1e3), (1_999.0, 1e3), (2e3, 2e3), (3.75e6, 2e6), (1e9, 1e9), (1e30, 1e9)] {
            let grain = Grain::within(most);
            assert_eq!(grain.micros, micros, "of {most}");
            let held = (u128::from(grain.grade) << 40) * 1_000_000_000 + 1_700_000_000_123_456;
            assert_eq!(Grain::micros_of(held) as f64, micros);
            assert_eq!(Grain::taken_off(held), 1_700_000_000_123_456);
        }
    }
}
