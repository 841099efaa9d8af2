//! Limits of calendar windows.

#[cfg(feature = "time-zones")]
use super::calendar::NamedZone;
use super::calendar::{Calendar, Unit, Weekday, Zone};
use super::settings::{Algorithm, Kind};
#[cfg(feature = "time-zones")]
use crate::error::or_panic;
use crate::error::validation::{self, checked};
use crate::error::{ConfigError, Fault};

/// At most `limit` tokens in each day, week, month or year of a calendar: in UTC, or in another time zone (`in_zone`,
/// with the feature `time-zones`).
///
/// - **Admits at most** `limit` tokens per window, and twice that across a boundary.
/// - **Keeps** 24 bytes per key: the end of the window, and its count.
/// - **Choose it** for quotas that people are billed by, which begin with a local day, a week, a month or a billing
///   day. If only the length of the window matters, a [`FixedWindow`](crate::FixedWindow) is simpler.
///
/// ```
/// use tower_ratelimit::{CalendarWindow, Limit, Weekday};
///
/// let quota = Limit::new("quota", CalendarWindow::monthly(10_000));
/// let billed = Limit::new("billed", CalendarWindow::monthly(10_000).from_day(15));
/// let weekly = Limit::new("weekly", CalendarWindow::weekly(500, Weekday::Monday));
/// # let _ = (quota, billed, weekly);
/// # #[cfg(feature = "time-zones")]
/// let local = Limit::new("local", CalendarWindow::daily(100).in_zone("Europe/Berlin"));
/// ```
///
/// # Where windows begin
///
/// A window begins at the first instant that is, by the clocks of the time zone, on one of these dates or later, and
/// ends where the next window begins:
///
/// - [`daily`](Self::daily): every day,
/// - [`weekly`](Self::weekly): every day that is the given weekday,
/// - [`monthly`](Self::monthly): the first of every month, or the day set by [`from_day`](Self::from_day): in shorter
///   months, their last day,
/// - [`yearly`](Self::yearly): every 1 January.
///
/// A day in which clocks are set forward has 23 hours, one in which they are set back has 25. A day whose midnight is
/// skipped begins with the first instant after the gap, and one with two midnights begins with the first. Once a new
/// day has begun, it includes the minutes that are repeated when clocks are set back over midnight. A date that is
/// skipped altogether (30 December 2011 in Samoa) has no window: one that would begin on it begins on the next date.
///
/// Dates are those of the Gregorian calendar. Time zones follow the IANA database as it was when the zone was first
/// used: the system's, or else the one that is compiled in. A window with a count keeps the end that it had when it
/// began, even if another process has other rules.
///
/// # On Redis
///
/// Redis' clock decides which window is current. As scripts know no calendars, a request carries the boundaries of four
/// windows: the current one by this machine's clock, the one before, and the two after. If Redis' clock is in none
/// of them, nothing is charged, and the request is sent again with the boundaries around Redis' clock: a second round
/// trip, for machines whose clock is off by more than a window.
///
/// Limits of the same name share their keys' counts if they have the same unit, first day and time zone (by name).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CalendarWindow {
    limit: u32,
    calendar: Calendar,
}

impl CalendarWindow {
    /// Allows `limit` tokens, at least 1, per day.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn daily(limit: u32) -> Self {
        Self::of(limit, Unit::Day)
    }

    /// Allows `limit` tokens, at least 1, per week. Weeks begin on the day `first`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn weekly(limit: u32, first: Weekday) -> Self {
        Self::of(limit, Unit::Week(first))
    }

    /// Allows `limit` tokens, at least 1, per month. Months begin on their first day, or on the day set by
    /// [`from_day`](Self::from_day).
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn monthly(limit: u32) -> Self {
        Self::of(limit, Unit::Month(1))
    }

    /// Allows `limit` tokens, at least 1, per year. Years begin on 1 January.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn yearly(limit: u32) -> Self {
        Self::of(limit, Unit::Year)
    }

    #[track_caller]
    const fn of(limit: u32, unit: Unit) -> Self {
        let limit = checked!(validation::tokens("limit", limit));
        Self { limit, calendar: Calendar { unit, every: 1, zone: Zone::Utc } }
    }

    /// Sets the day of the month on which months begin, from 1 to 31: a billing day. Shorter months begin on their last
    /// day: with 31, that is 28 February, 31 March, 30 April.
    ///
    /// # Panics
    ///
    /// Panics if there is no such day, or windows are not months. In a constant, this is a compile-time error.
    /// [`try_from_day`](Self::try_from_day) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn from_day(self, day: u8) -> Self {
        checked!(self.checked_from_day(day))
    }

    /// Fallible version of [`from_day`](Self::from_day).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such day, or windows are not months.
    pub fn try_from_day(self, day: u8) -> Result<Self, ConfigError> {
        Ok(self.checked_from_day(day)?)
    }

    const fn checked_from_day(self, day: u8) -> Result<Self, Fault> {
        match (self.calendar.unit, validation::day_of_month(day as u32)) {
            (Unit::Month(_), Ok(day)) => {
                Ok(Self { calendar: Calendar { unit: Unit::Month(day), ..self.calendar }, ..self })
            }
            (Unit::Month(_), Err(fault)) => Err(fault),
            _ => Err(Fault::new("`from_day` is for months: use `CalendarWindow::monthly`, or leave it out")),
        }
    }

    /// Sets the time zone in which windows begin, by its name in the IANA database (`"Europe/Berlin"`, `"UTC"`), in
    /// upper or lower case. Defaults to UTC.
    ///
    /// ```
    /// use tower_ratelimit::CalendarWindow;
    ///
    /// let quota = CalendarWindow::monthly(10_000).in_zone("America/New_York");
    /// assert!(CalendarWindow::daily(1).try_in_zone("Europe/Atlantis").is_err());
    /// # let _ = quota;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if there is no such time zone. [`try_in_zone`](Self::try_in_zone) returns an error instead.
    #[cfg(feature = "time-zones")]
    #[must_use]
    #[track_caller]
    pub fn in_zone(self, zone: &str) -> Self {
        or_panic(self.try_in_zone(zone))
    }

    /// Fallible version of [`in_zone`](Self::in_zone).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such time zone.
    #[cfg(feature = "time-zones")]
    pub fn try_in_zone(self, zone: &str) -> Result<Self, ConfigError> {
        let zone = if zone.eq_ignore_ascii_case("UTC") { Zone::Utc } else { Zone::Named(NamedZone::find(zone)?) };
        Ok(Self { calendar: Calendar { zone, ..self.calendar }, ..self })
    }
}

impl From<CalendarWindow> for Algorithm {
    fn from(CalendarWindow { limit, calendar }: CalendarWindow) -> Self {
        Self { kind: Kind::Window(Some(calendar)), amount: 0, overage: 0, capacity: limit.into(), span: 0 }
    }
}
