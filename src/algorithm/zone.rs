//! Time zones: of which day an instant is, and when a day begins.

#[cfg(feature = "time-zones")]
mod named;

use super::calendar::{DAY, Unit};
use super::civil::Day;

/// Where it is which day.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Zone {
    Utc,
    #[cfg(feature = "time-zones")]
    Named(Named),
}

#[cfg(feature = "time-zones")]
pub(super) use named::{Current, Named};

/// Without zones, there is nothing worth remembering.
#[cfg(not(feature = "time-zones"))]
pub(super) enum Current {}

#[cfg(not(feature = "time-zones"))]
impl Current {
    pub(super) fn end(&self, _: i64, _: impl FnOnce() -> (i64, i64)) -> i64 {
        match *self {}
    }
}

impl Zone {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.name(),
        }
    }

    /// The day that holds the instant `at`.
    pub(super) fn day(self, at: i64) -> Day {
        match self {
            Self::Utc => at.div_euclid(DAY),
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => (at + zone.offset(at)).div_euclid(DAY),
        }
    }

    /// The first instant that is of this day or a later one.
    pub(super) fn start_of(self, day: Day) -> i64 {
        match self {
            Self::Utc => day * DAY,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.start_of(day),
        }
    }

    /// Where the present window of this unit is remembered, if it takes work to find.
    pub(super) fn current(self, unit: Unit) -> Option<&'static Current> {
        match self {
            Self::Utc => {
                let _ = unit;
                None
            }
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => Some(zone.current(unit)),
        }
    }
}
