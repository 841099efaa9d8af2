//! The instant at which a bucket is as if it had never been used, exactly.

use crate::record::Record;

/// An instant in whole µs, which can lie 2^77 µs off, 32 bits that say more, and by which amount all of
/// it is to be read.
///
/// Packed into a [`Record`], an instant under 2^63 µs stands in `until`. A later one would not fit
/// beside its detail: 95 + 32 bits then follow a leading 1, which reads as an instant in the
/// year 292,277 or later to whoever only asks how long the record means something. The amount is then
/// not known (0), and taken to be the limit's own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Full {
    pub(crate) micros: u128,
    pub(crate) detail: u32,
    pub(crate) amount: u32,
}

pub(super) const FAR: u64 = 1 << 63;

impl Full {
    /// Whether an instant is near enough to leave room for an amount.
    #[inline]
    pub(crate) fn is_near_at(micros: u128) -> bool {
        micros < u128::from(FAR)
    }

    /// Whether the instant of `record` stands in `until`, as it is.
    #[inline]
    pub(crate) fn is_near(record: &Record) -> bool {
        record.until & FAR == 0
    }

    #[inline]
    pub(crate) fn of(record: &Record) -> Self {
        if Self::is_near(record) {
            let amount = (record.detail >> 32) as u32;
            return Self { micros: u128::from(record.until), detail: record.detail as u32, amount };
        }
        let packed = u128::from(record.until ^ FAR) << 64 | u128::from(record.detail);
        Self { micros: packed >> 32, detail: packed as u32, amount: 0 }
    }

    #[inline]
    pub(crate) fn record(self) -> Record {
        match u64::try_from(self.micros) {
            Ok(until) if until & FAR == 0 => {
                Record { until, detail: u64::from(self.amount) << 32 | u64::from(self.detail) }
            }
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
                let amount = if Full::is_near_at(micros) { u32::MAX - 1 } else { 0 };
                let full = Full { micros, detail, amount };
                assert_eq!(Full::of(&full.record()), full);
                assert!(u128::from(full.record().until) >= micros.min(1 << 63));
            }
        }
    }
}
