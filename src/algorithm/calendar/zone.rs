//! Time zones: which day an instant is on, and when a day begins.

use super::civil::Day;
#[cfg(feature = "time-zones")]
use super::named::NamedZone;
use super::unit::DAY;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(in crate::algorithm) enum Zone {
    Utc,
    #[cfg(feature = "time-zones")]
    Named(NamedZone),
}

impl Zone {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.name(),
        }
    }

    /// Returns the day that contains the instant `at`.
    pub(super) fn day(self, at: i64) -> Day {
        match self {
            Self::Utc => at.div_euclid(DAY),
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => (at + zone.offset(at)).div_euclid(DAY),
        }
    }

    /// Returns the first instant of this day, or of the next one if it is skipped.
    pub(super) fn start_of(self, day: Day) -> i64 {
        match self {
            Self::Utc => day * DAY,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.start_of(day),
        }
    }
}
