//! A counter per window of a calendar.

use super::aligned_window::AlignedWindow;
use super::calendar::{Calendar, Unit, Weekday};
#[cfg(feature = "time-zones")]
use super::calendar::{NamedZone, Zone};
use super::settings::Settings;
use super::size::{self, Size};
use super::state::CompactState;
use super::state_period::StatePeriod;
use crate::error::ConfigError;
#[cfg(feature = "time-zones")]
use crate::error::or_panic;
use crate::time::Timestamp;
use crate::validation::{self, checked};

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
/// used: the system's, or else the one that is compiled in. After the year 9999, they keep their last offset. A window
/// with a count keeps the end that it had when it began, even if another process has other rules.
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
    pub(crate) limit: u32,
    pub(crate) calendar: Calendar,
}

/// A constructor that panics, and its fallible version.
macro_rules! constructors {
    ($(#[doc = $doc:literal])* $name:ident, $try_name:ident, ($($first:ident: $type:ty)?), $unit:expr) => {
        $(#[doc = $doc])*
        ///
        /// # Panics
        ///
        /// Panics if `limit` is 0. In a constant, this is a compile-time error.
        #[doc = concat!("[`", stringify!($try_name), "`](Self::", stringify!($try_name), ") returns an error instead.")]
        #[must_use]
        #[track_caller]
        pub const fn $name(limit: u32 $(, $first: $type)?) -> Self {
            Self { limit: checked!(validation::tokens("limit", limit)), calendar: Calendar::new($unit) }
        }

        #[doc = concat!("Fallible version of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        ///
        /// Returns an error if `limit` is 0.
        pub fn $try_name(limit: u32 $(, $first: $type)?) -> Result<Self, ConfigError> {
            Ok(Self { limit: validation::tokens("limit", limit)?, calendar: Calendar::new($unit) })
        }
    };
}

impl CalendarWindow {
    constructors!(
        /// Allows `limit` tokens, at least 1, per day.
        daily, try_daily, (), Unit::Day
    );
    constructors!(
        /// Allows `limit` tokens, at least 1, per week. Weeks begin on the day `first`.
        weekly, try_weekly, (first: Weekday), Unit::Week(first)
    );
    constructors!(
        /// Allows `limit` tokens, at least 1, per month. Months begin on their first day, or on the day set by
        /// [`from_day`](Self::from_day).
        monthly, try_monthly, (), Unit::Month(1)
    );
    constructors!(
        /// Allows `limit` tokens, at least 1, per year. Years begin on 1 January.
        yearly, try_yearly, (), Unit::Year
    );

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
        Self { calendar: checked!(self.calendar.starting(day)), ..self }
    }

    /// Fallible version of [`from_day`](Self::from_day).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such day, or windows are not months.
    pub fn try_from_day(self, day: u8) -> Result<Self, ConfigError> {
        Ok(Self { calendar: self.calendar.starting(day)?, ..self })
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
        Ok(Self { calendar: self.calendar.in_zone(zone), ..self })
    }

    /// Returns the number of tokens per window.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the start of the window that contains `at`, and its end, which is the start of the next one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{CalendarWindow, Timestamp};
    ///
    /// let (start, end) = CalendarWindow::monthly(100).window_bounds(Timestamp::EPOCH);
    /// assert_eq!(start, Timestamp::EPOCH);
    /// assert_eq!(end.as_micros(), Duration::from_secs(31 * 86_400).as_micros() as u64);
    /// ```
    #[must_use]
    pub fn window_bounds(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let (start, end) = self.calendar.window(seconds(at.as_micros()));
        // The window that contains the epoch may begin before it.
        let timestamp = |second: i64| {
            let micros = u64::try_from(second).unwrap_or(0).saturating_mul(SECOND);
            Timestamp::from_micros(micros.min(Timestamp::MAX.as_micros()))
        };
        (timestamp(start), timestamp(end))
    }

    /// Returns the length of the window that contains `now`, in µs.
    pub(super) fn window_at(&self, now: u64) -> u64 {
        let (start, end) = self.calendar.window(seconds(now));
        (end - start) as u64 * SECOND
    }
}

impl Settings for CalendarWindow {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Calendar(self.calendar)
    }

    fn capacity(&self) -> u64 {
        self.limit as u64
    }

    fn window(&self) -> u64 {
        self.calendar.longest() as u64 * SECOND
    }

    fn size(&self) -> Size {
        [self.limit, 0]
    }

    fn with_size(self, [limit, _]: Size) -> Option<Self> {
        (limit > 0).then_some(Self { limit, ..self })
    }

    fn with_overage(self, percent: u32) -> Self {
        Self { limit: size::raised(self.limit, percent, u64::MAX), ..self }
    }

    fn share(self, parts: u32) -> Self {
        let (limit, every) = size::share_of_window(self.limit, self.calendar.every().into(), parts);
        Self { limit, calendar: self.calendar.with_every(every) }
    }
}

const SECOND: u64 = 1_000_000;

fn seconds(micros: u64) -> i64 {
    (micros / SECOND) as i64
}

impl AlignedWindow for CalendarWindow {
    fn limit(&self) -> u64 {
        self.capacity()
    }

    fn current(&self, state: &CompactState, now: u64) -> (u64, u64) {
        // A window keeps the end that it began with.
        if state.expires_at > now {
            return (state.expires_at, state.detail);
        }
        (self.calendar.end(seconds(now)) as u64 * SECOND, 0)
    }
}
