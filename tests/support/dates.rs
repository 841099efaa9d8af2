//! The starts of calendar windows in UTC, computed with another library.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tower_ratelimit::CalendarWindow;

/// The dates on which windows begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dates {
    Days,
    /// Sundays.
    Weeks,
    /// This day of each month, or its last day.
    Months(u8),
    Years,
}

/// 400 years, after which the calendar repeats, including weekdays.
const ERA: i128 = 146_097 * 86_400_000_000;

impl Dates {
    pub fn of(self, limit: u32) -> CalendarWindow {
        match self {
            Self::Days => CalendarWindow::daily(limit),
            Self::Weeks => CalendarWindow::weekly(limit, tower_ratelimit::Weekday::Sunday),
            Self::Months(day) => CalendarWindow::monthly(limit).from_day(day),
            Self::Years => CalendarWindow::yearly(limit),
        }
    }

    /// Returns the start of the window that contains `at`, in µs, which can be before the epoch.
    pub fn start(self, at: u128) -> i128 {
        let at = i128::try_from(at).unwrap();
        let within = Timestamp::from_microsecond((at % ERA) as i64).unwrap();
        let first = self.first(within.to_zoned(TimeZone::UTC).date());
        let midnight = first.to_zoned(TimeZone::UTC).unwrap().timestamp().as_microsecond();
        at / ERA * ERA + i128::from(midnight)
    }

    fn first(self, date: Date) -> Date {
        match self {
            Self::Days => date,
            Self::Weeks => date - i64::from(date.weekday().since(Weekday::Sunday)).days(),
            Self::Months(day) => {
                let of = |month: Date| month.with().day((day as i8).min(month.days_in_month())).build().unwrap();
                let this = of(date.first_of_month());
                if date < this { of(date.first_of_month() - 1.month()) } else { this }
            }
            Self::Years => date.first_of_year(),
        }
    }

    /// Returns the fewest and the most days of a window.
    pub fn days(self) -> (u64, u64) {
        match self {
            Self::Days => (1, 1),
            Self::Weeks => (7, 7),
            Self::Months(_) => (28, 31),
            Self::Years => (365, 366),
        }
    }
}
