//! Units of a calendar.

use super::civil::{self, Day};

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

/// In seconds.
pub(super) const DAY: i64 = 86_400;

impl Unit {
    /// Returns the number of the unit that contains a day.
    pub(super) const fn number(self, day: Day) -> i64 {
        match self {
            Self::Day => day,
            Self::Week(first) => (day - Self::first_week(first)).div_euclid(7),
            Self::Month(_) => {
                let (year, month, _) = civil::date(day);
                let number = year * 12 + month - 1;
                if day < self.first_day(number) { number - 1 } else { number }
            }
            Self::Year => civil::date(day).0,
        }
    }

    /// Returns the first day of the unit of that number.
    pub(super) const fn first_day(self, number: i64) -> Day {
        match self {
            Self::Day => number,
            Self::Week(first) => number * 7 + Self::first_week(first),
            Self::Month(day) => {
                let (year, month) = (number.div_euclid(12), number.rem_euclid(12) + 1);
                let (day, last) = (day as i64, civil::days_of(year, month));
                civil::day(year, month, if day < last { day } else { last })
            }
            Self::Year => civil::day(number, 1, 1),
        }
    }

    /// Returns the first day of the first week after the epoch, which was a Thursday.
    const fn first_week(first: Weekday) -> Day {
        (first as i64 + 4) % 7
    }

    /// Returns a number that identifies the unit, less than [`COUNT`](Self::COUNT).
    #[cfg(feature = "time-zones")]
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Day => 0,
            Self::Week(first) => 1 + first as usize,
            Self::Month(day) => 7 + day as usize,
            Self::Year => 39,
        }
    }

    #[cfg(feature = "time-zones")]
    pub(super) const COUNT: usize = 40;
}
