//! A slow model of the starts of windows, which steps through dates and instants.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use tower_ratelimit::CalendarWindow;

/// The dates on which windows start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dates {
    Days,
    /// A day of the week, where Monday is 0.
    Weeks(usize),
    Months(u8),
    Years,
}

pub(crate) const WEEKDAYS: [(Weekday, tower_ratelimit::Weekday); 7] = [
    (Weekday::Monday, tower_ratelimit::Weekday::Monday),
    (Weekday::Tuesday, tower_ratelimit::Weekday::Tuesday),
    (Weekday::Wednesday, tower_ratelimit::Weekday::Wednesday),
    (Weekday::Thursday, tower_ratelimit::Weekday::Thursday),
    (Weekday::Friday, tower_ratelimit::Weekday::Friday),
    (Weekday::Saturday, tower_ratelimit::Weekday::Saturday),
    (Weekday::Sunday, tower_ratelimit::Weekday::Sunday),
];

impl Dates {
    fn starts_with(self, date: Date) -> bool {
        match self {
            Self::Days => true,
            Self::Weeks(first) => date.weekday() == WEEKDAYS[first].0,
            Self::Months(day) => date.day() == (day as i8).min(date.days_in_month()),
            Self::Years => date.month() == 1 && date.day() == 1,
        }
    }
}

/// A calendar in a time zone.
#[derive(Clone)]
pub(crate) struct Calendar {
    pub(crate) dates: Dates,
    pub(crate) zone: TimeZone,
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.dates, self.zone.iana_name().unwrap())
    }
}

impl Calendar {
    pub(crate) fn new(dates: Dates, zone: &str) -> Self {
        Self { dates, zone: TimeZone::get(zone).unwrap() }
    }

    pub(crate) fn of(&self, limit: u32) -> CalendarWindow {
        let windows = match self.dates {
            Dates::Days => CalendarWindow::daily(limit),
            Dates::Weeks(first) => CalendarWindow::weekly(limit, WEEKDAYS[first].1),
            Dates::Months(day) => CalendarWindow::monthly(limit).from_day(day),
            Dates::Years => CalendarWindow::yearly(limit),
        };
        windows.in_zone(self.zone.iana_name().unwrap())
    }

    /// Returns the starts of the window that contains `at` and of the next one, in µs.
    pub(crate) fn window(&self, at: u64) -> (i64, i64) {
        let at = i64::try_from(at).unwrap();
        let second = Timestamp::from_second(at.div_euclid(1_000_000)).unwrap();
        let start_of = |date| self.dates.starts_with(date).then(|| self.first_of(date) * 1_000_000);
        // If clocks are set back over midnight, the next day may already have begun.
        let mut date = second.to_zoned(self.zone.clone()).date().tomorrow().unwrap();
        let start = loop {
            match start_of(date) {
                Some(start) if start <= at => break start,
                _ => date = date.yesterday().unwrap(),
            }
        };
        loop {
            date = date.tomorrow().unwrap();
            match start_of(date) {
                Some(end) if end > at => return (start, end),
                _ => {}
            }
        }
    }

    /// Returns the first second of this date or a later one.
    fn first_of(&self, date: Date) -> i64 {
        let is_later = |second: i64| {
            let second = Timestamp::from_second(second).unwrap();
            self.zone.to_datetime(second).date() >= date
        };
        let midnight = date.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second();
        // The largest offset from UTC on these days, and an hour more.
        let ahead = |hour: i64| self.zone.to_offset(Timestamp::from_second(midnight + hour * 3_600).unwrap()).seconds();
        let mut minute = midnight - i64::from((-48..48).map(ahead).max().unwrap()) - 3_600;
        assert!(!is_later(minute), "a day that has begun before");
        while !is_later(minute) {
            minute += 60;
        }
        (minute - 60..=minute).find(|second| is_later(*second)).unwrap()
    }
}
