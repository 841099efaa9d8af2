//! Dates of the Gregorian calendar, and the units that windows consist of.
//!
//! Dates are days since 1 January 1970. The formulas and their constants are those of Howard Hinnant's
//! [chrono-compatible low-level date algorithms](https://howardhinnant.github.io/date_algorithms.html).

/// The number of a day: 0 is 1 January 1970.
pub(super) type Day = i64;

/// A day in seconds.
pub(super) const DAY: i64 = 86_400;

/// The days of 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;

/// The days from 1 March of the year 0 to 1970. Years begin in March here, so that a leap day is their last.
const SHIFT: i64 = 719_468;

/// Returns the day of a date. Months and days of the month count from 1.
pub(super) const fn day(year: i64, month: i64, day: i64) -> Day {
    let year = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - SHIFT
}

/// Returns the year, the month and the day of the month.
pub(super) const fn date(day: Day) -> (i64, i64, i64) {
    let shifted = day + SHIFT;
    let (era, of_era) = (shifted.div_euclid(ERA), shifted.rem_euclid(ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year;
    (if month > 2 { year } else { year + 1 }, month, of_month)
}

/// Returns the number of days of a month.
const fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
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
    pub(super) const fn number(self, day: Day) -> i64 {
        match self {
            Self::Day => day,
            Self::Week(first) => (day - Self::first_week(first)).div_euclid(7),
            Self::Month(_) => {
                let (year, month, _) = date(day);
                let number = year * 12 + month - 1;
                if day < self.first_day(number) { number - 1 } else { number }
            }
            Self::Year => date(day).0,
        }
    }

    /// Returns the first day of the unit of that number.
    pub(super) const fn first_day(self, number: i64) -> Day {
        match self {
            Self::Day => number,
            Self::Week(first) => number * 7 + Self::first_week(first),
            Self::Month(first) => {
                let (year, month) = (number.div_euclid(12), number.rem_euclid(12) + 1);
                let (first, last) = (first as i64, days_of(year, month));
                day(year, month, if first < last { first } else { last })
            }
            Self::Year => day(number, 1, 1),
        }
    }

    /// Returns the first day of the first week after the epoch, which was a Thursday.
    const fn first_week(first: Weekday) -> Day {
        (first as i64 + 4) % 7
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_days_have_consecutive_dates() {
        let (mut year, mut month, mut of_month) = (1968, 1, 1);
        for number in day(1968, 1, 1)..day(2405, 1, 1) {
            assert_eq!((day(year, month, of_month), date(number)), (number, (year, month, of_month)));
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
        assert_eq!(day(1970, 1, 1), 0);
        assert_eq!(day(2000, 2, 29), 11_016);
        assert_eq!(day(2026, 1, 1), 20_454);
        // After a thousand repetitions of the calendar, and before the epoch.
        assert_eq!(date(11_016 + 1_000 * ERA), (402_000, 2, 29));
        assert_eq!(date(-1), (1969, 12, 31));
    }
}
