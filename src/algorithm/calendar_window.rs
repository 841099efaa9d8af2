//! A counter for each window of a calendar.

use super::calendar::{Calendar, Unit, Weekday};
use super::windows::Windows;
#[cfg(feature = "time-zones")]
use super::zone::{Named, Zone};
use super::{Size, share};
use crate::error::ConfigError;
#[cfg(feature = "time-zones")]
use crate::error::or_panic;
use crate::quota::{self, checked};
use crate::record::Record;

/// At most `limit` tokens in each day, week, month or year of a calendar: in UTC, unless
/// `in_zone` says where. For quotas that people are billed by.
///
/// - **Admits at most**: `limit` in a window; twice that across the edge of two.
/// - **Remembers**: 16 bytes a key: the window and its count.
/// - **Choose it when** a window has to begin with a local day, a week, a month or a billing day. Where
///   only the length matters, a [`FixedWindow`](crate::FixedWindow) does as well.
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
/// A window holds all instants from its start, included, to the start of the next one, excluded. It starts at the
/// first instant at which it is, by the clocks of the zone, one of these dates or a later one:
///
/// - [`daily`](Self::daily): every day,
/// - [`weekly`](Self::weekly): every day that is that weekday,
/// - [`monthly`](Self::monthly): the first of every month, or with [`from_day`](Self::from_day) that day of it;
///   the last day of months that have fewer,
/// - [`yearly`](Self::yearly): every 1 January.
///
/// So a day has 23 hours if clocks are put forward in it, and 25 if they are put back. Where midnight itself is
/// skipped, the day starts with the first instant after; where it comes twice, with the first one. A date that is
/// skipped altogether (30 December 2011 in Samoa) has no window: one that would have started with it starts
/// with the next date. Where clocks are put back over midnight, the new day has begun all the same, and the minutes
/// that come again are part of it.
///
/// Dates are those of the Gregorian calendar, zones have the rules of the IANA's database as it was when the
/// zone was first named: the system's, or else the one that comes with this crate. From the end of
/// the year 9999 on, zones keep the offset that they have then. A window that has counted something goes
/// on until the end that it had when it began to, should another process have other rules. All else is as with
/// a [`FixedWindow`](crate::FixedWindow).
///
/// # On Redis
///
/// It is Redis' clock that says which window counts. As no script knows calendars, a request brings the edges
/// of four windows: the present one by this machine's clock, the one before, and the two after. If Redis' clock is in
/// none of these, nothing is charged, and the request goes there again, with the edges around what that clock
/// said: a second round trip, for machines whose clock is off by more than a window.
///
/// Limits of the same name and algorithm share what their keys have used if they have the same unit, first
/// day and zone, by its name.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CalendarWindow {
    pub(crate) limit: u32,
    pub(crate) calendar: Calendar,
}

/// A constructor that panics, and one that doesn't.
macro_rules! constructors {
    ($(#[doc = $doc:literal])* $name:ident, $try_name:ident, ($($first:ident: $type:ty)?), $unit:expr) => {
        $(#[doc = $doc])*
        ///
        /// # Panics
        ///
        /// When `limit` is 0; at compile time in a constant.
        #[doc = concat!("[`", stringify!($try_name), "`](Self::", stringify!($try_name), ") returns an error instead.")]
        #[must_use]
        #[track_caller]
        pub const fn $name(limit: u32 $(, $first: $type)?) -> Self {
            Self { limit: checked!(quota::tokens("limit", limit)), calendar: Calendar::of($unit) }
        }

        #[doc = concat!("Like [`", stringify!($name), "`](Self::", stringify!($name), "), for a limit that is not")]
        /// known to be right.
        ///
        /// # Errors
        ///
        /// When `limit` is 0.
        pub fn $try_name(limit: u32 $(, $first: $type)?) -> Result<Self, ConfigError> {
            Ok(Self { limit: quota::tokens("limit", limit)?, calendar: Calendar::of($unit) })
        }
    };
}

impl CalendarWindow {
    constructors!(
        /// At most `limit` tokens, from 1, in each day.
        daily, try_daily, (), Unit::Day
    );
    constructors!(
        /// At most `limit` tokens, from 1, in each week, which begins with the day `first`.
        weekly, try_weekly, (first: Weekday), Unit::Week(first)
    );
    constructors!(
        /// At most `limit` tokens, from 1, in each month: from its first day, unless
        /// [`from_day`](Self::from_day) says otherwise.
        monthly, try_monthly, (), Unit::Month(1)
    );
    constructors!(
        /// At most `limit` tokens, from 1, in each year, from 1 January.
        yearly, try_yearly, (), Unit::Year
    );

    /// Months begin with this day of the month, from 1 to 31: a billing day. In months that have fewer, with
    /// their last one: from the 31st, that is 28 February, 31 March, 30 April.
    ///
    /// # Panics
    ///
    /// When there is no such day, or windows are not months; at compile time in a constant.
    /// [`try_from_day`](Self::try_from_day) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn from_day(self, day: u8) -> Self {
        Self { calendar: checked!(self.calendar.starting(day)), ..self }
    }

    /// Like [`from_day`](Self::from_day), for a day that is not known to be right.
    ///
    /// # Errors
    ///
    /// When there is no such day, or windows are not months.
    pub fn try_from_day(self, day: u8) -> Result<Self, ConfigError> {
        Ok(Self { calendar: self.calendar.starting(day)?, ..self })
    }

    /// Windows begin where it is midnight there: in a time zone of the IANA's database (`"Europe/Berlin"`, `"UTC"`),
    /// in any case.
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
    /// When there is no such time zone. [`try_in_zone`](Self::try_in_zone) returns an error instead.
    #[cfg(feature = "time-zones")]
    #[must_use]
    #[track_caller]
    pub fn in_zone(self, zone: &str) -> Self {
        or_panic(self.try_in_zone(zone))
    }

    /// Like [`in_zone`](Self::in_zone), for a name that is not known to be right.
    ///
    /// # Errors
    ///
    /// When there is no such time zone.
    #[cfg(feature = "time-zones")]
    pub fn try_in_zone(self, zone: &str) -> Result<Self, ConfigError> {
        let zone = if zone.eq_ignore_ascii_case("UTC") { Zone::Utc } else { Zone::Named(Named::find(zone)?) };
        Ok(Self { calendar: self.calendar.in_zone(zone), ..self })
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.limit as u64
    }

    pub(super) const fn window(&self) -> u128 {
        self.calendar.longest() as u128 * SECOND as u128
    }

    /// How long the window is, in µs, that holds `now`.
    pub(super) fn window_at(&self, now: u64) -> u128 {
        let (start, end) = self.calendar.window(seconds(now));
        (end - start) as u128 * u128::from(SECOND)
    }

    pub(super) fn share(self, parts: u32) -> Self {
        let (limit, every) = share::window(self.limit, self.calendar.every().into(), parts);
        Self { limit, calendar: self.calendar.of_every(every) }
    }

    pub(super) const fn size(&self) -> Size {
        [self.limit, 0]
    }

    pub(super) fn sized(self, [limit, _]: Size) -> Option<Self> {
        (limit > 0).then_some(Self { limit, ..self })
    }

    pub(super) const fn raised(self, percent: u32) -> Self {
        Self { limit: share::raised(self.limit, percent), ..self }
    }

    pub(super) const fn calendar(&self) -> Calendar {
        self.calendar
    }
}

const SECOND: u64 = 1_000_000;

fn seconds(micros: u64) -> i64 {
    (micros / SECOND) as i64
}

impl Windows for CalendarWindow {
    #[inline(always)]
    fn most(&self) -> u64 {
        self.capacity()
    }

    #[inline(always)]
    fn current(&self, record: &Record, now: u64) -> (u64, u64) {
        // A window goes on until the end that it was begun with.
        if record.until > now {
            return (record.until, record.detail);
        }
        (self.calendar.end(seconds(now)) as u64 * SECOND, 0)
    }
}
