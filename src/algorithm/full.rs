//! The instant at which a bucket is as if it had never been used, exactly.

use crate::record::Record;

/// An instant in whole µs, which can lie 2^77 µs off, and 32 bits that say more.
///
/// Packed into a [`Record`], an instant under 2^63 µs stands in `until`. A later one would not fit
/// beside its detail: all 96 + 32 bits then follow a leading 1, which reads as an instant in the
/// year 292,277 or later to whoever only asks how long the record means something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Full {
    pub(super) micros: u128,
    pub(super) detail: u32,
}

const FAR: u64 = 1 << 63;

impl Full {
    /// Whether the instant of `record` stands in `until`, as it is.
    #[inline]
    pub(super) fn is_near(record: &Record) -> bool {
        record.until & FAR == 0
    }

    #[inline]
    pub(super) fn of(record: &Record) -> Self {
        if Self::is_near(record) {
            return Self { micros: u128::from(record.until), detail: record.detail as u32 };
        }
        let packed = u128::from(record.until ^ FAR) << 64 | u128::from(record.detail);
        Self { micros: packed >> 32, detail: packed as u32 }
    }

    #[inline]
    pub(super) fn record(self) -> Record {
        match u64::try_from(self.micros) {
            Ok(until) if until & FAR == 0 => Record { until, detail: u64::from(self.detail) },
            _ => {
                let packed = self.micros << 32 | u128::from(self.detail);
                Record { until: (packed >> 64) as u64 | FAR, detail: packed as u64 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_instants_survive() {
        let longest = (1u128 << 62) + (1 << 33) * 31_622_400_000_000;
        for micros in [1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u128::from(u64::MAX), 1 << 64, longest] {
            for detail in [0, 1, u32::MAX] {
                let full = Full { micros, detail };
                assert_eq!(Full::of(&full.record()), full);
                assert!(u128::from(full.record().until) >= micros.min(1 << 63));
            }
        }
    }
}
