//! Windows of days, weeks, months and years of the Gregorian calendar, in a time zone.
//!
//! Days count from 1 January 1970, and months from January of the year 0.

#[cfg(feature = "time-zones")]
mod named;

use std::fmt;

#[cfg(feature = "time-zones")]
pub(super) use self::named::NamedZone;
use crate::time::Timestamp;

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
    fn name(self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.name(),
        }
    }

    /// Returns the day that contains the instant `at`.
    fn day(self, at: i64) -> Day {
        match self {
            Self::Utc => at.div_euclid(DAY),
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => (at + zone.offset(at)).div_euclid(DAY),
        }
    }

    /// Returns the first instant of this day, or of the next one if it is skipped.
    fn start_of(self, day: Day) -> i64 {
        match self {
            Self::Utc => day * DAY,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.start_of(day),
        }
    }
}

/// The number of a day: 0 is 1 January 1970.
type Day = i64;

/// A day in seconds.
const DAY: i64 = 86_400;

/// The days of 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;

/// The days from 1 March of the year 0 to 1970.
const SHIFT: i64 = 719_468;

/// Returns the first day of a month.
fn first_of_month(month: i64) -> Day {
    // Years begin in March here, so that a leap day is their last. Their months have 30.6 days on average: 153 in five.
    let (year, of_year) = ((month - 2).div_euclid(12), (month - 2).rem_euclid(12));
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * of_year + 2) / 5 - SHIFT
}

/// Returns the month that contains a day.
fn month_of(day: Day) -> i64 {
    // Up to two months too late.
    let mut month = ((day + SHIFT) * 4_800).div_euclid(ERA) + 3;
    while first_of_month(month) > day {
        month -= 1;
    }
    month
}

/// Writes an instant for people: `2026-11-29 12:00:04 UTC`.
pub(crate) fn date_and_time(at: Timestamp) -> String {
    let seconds = (at.as_micros() / 1_000_000) as i64;
    let (day, time) = (seconds / DAY, seconds % DAY);
    let month = month_of(day);
    let (year, of_year, of_month) = (month / 12, month % 12 + 1, day - first_of_month(month) + 1);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year}-{of_year:02}-{of_month:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// A day of the week, on which weeks may begin.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(in crate::algorithm) enum Unit {
    Day,
    /// A week that begins on this day.
    Week(Weekday),
    /// A month that begins on this day of the month, from 1, or on the last day of a shorter month.
    Month(u8),
    Year,
}

impl Unit {
    /// Returns the number of the unit that contains a day.
    fn number(self, day: Day) -> i64 {
        match self {
            Self::Day => day,
            Self::Week(first) => (day - Self::first_week(first)).div_euclid(7),
            Self::Month(_) => {
                let month = month_of(day);
                if day < self.first_day(month) { month - 1 } else { month }
            }
            Self::Year => month_of(day).div_euclid(12),
        }
    }

    /// Returns the first day of the unit of that number.
    fn first_day(self, number: i64) -> Day {
        match self {
            Self::Day => number,
            Self::Week(first) => number * 7 + Self::first_week(first),
            Self::Month(first) => (first_of_month(number) + i64::from(first)).min(first_of_month(number + 1)) - 1,
            Self::Year => first_of_month(number * 12),
        }
    }

    /// Returns the first day of the first week after the epoch, which was a Thursday.
    fn first_week(first: Weekday) -> Day {
        (first as i64 + 4) % 7
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of days of a month.
    fn days_of(year: i64, month: i64) -> i64 {
        match month {
            2 if year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    #[test]
    fn consecutive_days_are_in_consecutive_months() {
        let (mut year, mut month, mut of_month) = (1968, 1, 1);
        for day in first_of_month(12 * 1968)..first_of_month(12 * 2405) {
            let number = 12 * year + month - 1;
            assert_eq!((first_of_month(number) + of_month - 1, month_of(day)), (day, number));
            of_month += 1;
            if of_month > days_of(year, month) {
                (month, of_month) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn known_dates_convert() {
        assert_eq!(first_of_month(12 * 1970), 0);
        // 29 February 2000, also after a thousand repetitions of the calendar.
        assert_eq!(first_of_month(12 * 2000 + 2) - 1, 11_016);
        assert_eq!(month_of(11_016 + 1_000 * ERA), 12 * 402_000 + 1);
        assert_eq!(first_of_month(12 * 2026), 20_454);
        // Before the epoch.
        assert_eq!(month_of(-1), 12 * 1969 + 11);
    }

    #[test]
    fn instants_are_written_with_their_date() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_602, "2026-01-01 00:00:02 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date_and_time(Timestamp::from_micros(seconds * 1_000_000 + 999_999)), text);
        }
    }
}
