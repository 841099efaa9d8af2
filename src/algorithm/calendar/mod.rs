//! Windows of days, weeks, months and years, in a time zone.

mod dates;
#[cfg(feature = "time-zones")]
mod named;

use std::fmt;

pub(super) use self::dates::Unit;
pub use self::dates::Weekday;
use self::dates::{DAY, Day};
#[cfg(feature = "time-zones")]
pub(super) use self::named::NamedZone;

/// Where windows begin and end, in whole seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Calendar {
    pub(super) unit: Unit,
    /// The units in a window: more than one only in the share of a node.
    pub(super) every: u32,
    pub(super) zone: Zone,
}

/// The most units in a window. So the last one ends in the year 7112 at the latest, for which time zones have dates.
const MAX_EVERY: u32 = 5_000;

impl Calendar {
    pub(super) fn with_every(self, every: u64) -> Self {
        Self { every: every.min(MAX_EVERY.into()) as u32, ..self }
    }

    /// Returns the start and the end of the window that contains `at`.
    pub(crate) fn window(&self, at: i64) -> (i64, i64) {
        let every = i64::from(self.every);
        let mut window = self.unit.number(self.zone.day(at)).div_euclid(every);
        let mut start = self.start(window);
        loop {
            let end = self.start(window + 1);
            if at < end {
                return (start, end);
            }
            // If clocks are set back over midnight, local time shows the previous date again, but the window of the new
            // day has already begun. A day that is skipped has no window.
            (window, start) = (window + 1, end);
        }
    }

    fn start(&self, window: i64) -> i64 {
        self.zone.start_of(self.unit.first_day(window * i64::from(self.every)))
    }

    /// Describes the windows in words: `month from day 15 in Europe/Berlin`.
    pub(super) fn describe(&self) -> String {
        let unit = match self.unit {
            Unit::Day => "day".to_owned(),
            Unit::Week(first) => format!("week from {first:?}"),
            Unit::Month(day) => format!("month from day {day}"),
            Unit::Year => "year".to_owned(),
        };
        format!("{unit} in {}", self.zone.name())
    }
}

/// As it appears in storage keys, such as `m15.Europe/Berlin`. No two calendars have the same text.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.every > 1 {
            write!(f, "{}", self.every)?;
        }
        match self.unit {
            Unit::Day => write!(f, "d"),
            Unit::Week(first) => write!(f, "w{}", first as u8 + 1),
            Unit::Month(day) => write!(f, "m{day}"),
            Unit::Year => write!(f, "y"),
        }?;
        write!(f, ".{}", self.zone.name())
    }
}

/// A time zone: which day an instant is on, and when a day begins.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(in crate::algorithm) enum Zone {
    Utc,
    #[cfg(feature = "time-zones")]
    Named(&'static NamedZone),
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
