//! Days, weeks, months and years, somewhere.

use std::fmt;

use super::civil::{self, Day};
use super::zone::Zone;
use crate::error::Fault;

/// A day of the week, with which weeks may begin.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[allow(missing_docs, reason = "they are days")]
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

/// Where windows begin and end, in whole seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Calendar {
    unit: Unit,
    /// How many units a window has: more than one only in a node's share.
    every: u32,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Unit {
    Day,
    /// From this day on.
    Week(Weekday),
    /// From this day of the month on, from 1, or the last one of a month that has fewer.
    Month(u8),
    Year,
}

pub(super) const DAY: i64 = 86_400;

/// The most units of a window: so many years are still less than 2^62 µs.
const MOST: u32 = 100_000;

impl Calendar {
    pub(super) const fn of(unit: Unit) -> Self {
        Self { unit, every: 1, zone: Zone::Utc }
    }

    pub(super) const fn starting(self, day: u8) -> Result<Self, Fault> {
        match (self.unit, day) {
            (Unit::Month(_), 1..=31) => Ok(Self { unit: Unit::Month(day), ..self }),
            (Unit::Month(_), _) => Err(Fault::DayOfMonth { day: day as u32 }),
            _ => Err(Fault::NoMonth),
        }
    }

    #[cfg(feature = "time-zones")]
    pub(super) const fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    pub(super) const fn every(&self) -> u32 {
        self.every
    }

    pub(super) fn of_every(self, every: u64) -> Self {
        Self { every: every.min(MOST.into()) as u32, ..self }
    }

    /// The start and the end of the window that holds `at`.
    pub(crate) fn window(&self, at: i64) -> (i64, i64) {
        let every = i64::from(self.every);
        let mut window = self.unit.number(self.zone.day(at)).div_euclid(every);
        let mut start = self.start(window);
        loop {
            let end = self.start(window + 1);
            if at < end {
                return (start, end);
            }
            // Where clocks are put back over a midnight, a day has begun and it is the day before again; a
            // day that is skipped is no window.
            (window, start) = (window + 1, end);
        }
    }

    fn start(&self, window: i64) -> i64 {
        self.zone.start_of(self.unit.first_day(window * i64::from(self.every)))
    }

    /// The end of the window that holds `at`.
    #[inline]
    pub(super) fn end(&self, at: i64) -> i64 {
        match self.zone.current(self.unit).filter(|_| self.every == 1) {
            Some(current) => current.end(at, || self.window(at)),
            None => self.window(at).1,
        }
    }

    /// The longest that a window is where no clock is put forward or back.
    pub(super) const fn longest(&self) -> i64 {
        let days = match self.unit {
            Unit::Day => 1,
            Unit::Week(_) => 7,
            Unit::Month(_) => 31,
            Unit::Year => 366,
        };
        days * DAY * self.every as i64
    }
}

impl Unit {
    /// The number of the unit that holds a day.
    const fn number(self, day: Day) -> i64 {
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

    /// The first day of a unit.
    const fn first_day(self, number: i64) -> Day {
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

    /// The first day of the first week since the epoch, which was a Thursday.
    const fn first_week(first: Weekday) -> Day {
        (first as i64 + 4) % 7
    }

    /// Tells units apart, under [`UNITS`](Self::UNITS).
    #[cfg(feature = "time-zones")]
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Day => 0,
            Self::Week(first) => 1 + first as usize,
            Self::Month(day) => 7 + day as usize,
            Self::Year => 39,
        }
    }

    #[cfg(feature = "time-zones")]
    pub(super) const UNITS: usize = 40;
}

/// `m15.Europe/Berlin`: of what no other calendar may share.
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
