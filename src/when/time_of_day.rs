//! The time of day, somewhere.

use std::sync::Arc;

use jiff::civil::Time;
use jiff::tz::TimeZone;

use super::condition::Condition;
use crate::error::{ConfigError, ConfigErrorKind};
use crate::request::RequestHead;
use crate::time::{Clock, SystemClock};

/// Requests that come between two times of day (`"1:00"`, `"18:30"`, the second excluded), in a time
/// zone of the IANA's database (`"Europe/Berlin"`, `"UTC"`). Where the second is not later than the
/// first, over midnight.
///
/// Days are as long as they are there: when clocks are put back, an hour that comes twice holds twice.
/// It is the system's time that counts, not the store's: a test gives [a clock](TimeOfDay::clock) to both.
///
/// ```
/// use tower_ratelimit::when::{self, Condition};
/// use tower_ratelimit::{Limit, TokenBucket};
///
/// let nights = Limit::new("nights", TokenBucket::per_second(1))
///     .when(when::time_of_day("Asia/Tokyo", "1:00", "6:00").and(when::header("x-region", "jp")));
/// # let _ = nights;
/// ```
///
/// # Panics
///
/// When there is no such time zone, or a time is not one. [`try_time_of_day`] returns an error instead.
#[must_use]
#[track_caller]
pub fn time_of_day(zone: &str, from: &str, until: &str) -> TimeOfDay {
    try_time_of_day(zone, from, until).unwrap_or_else(|error| panic!("{error}"))
}

/// Like [`time_of_day`], for values that are not known to be right.
///
/// # Errors
///
/// When there is no such time zone, or a time is not one.
pub fn try_time_of_day(zone: &str, from: &str, until: &str) -> Result<TimeOfDay, ConfigError> {
    let zone = TimeZone::get(zone).map_err(|_| ConfigErrorKind::TimeZone { zone: zone.to_owned() })?;
    Ok(TimeOfDay { zone, from: time(from)?, until: time(until)?, clock: Arc::new(SystemClock::new()) })
}

/// Hours and minutes, and seconds if need be.
fn time(text: &str) -> Result<Time, ConfigError> {
    let wrong = || ConfigErrorKind::TimeOfDay { time: text.to_owned() };
    let mut parts = text.split(':').map(|part| {
        let digits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_: &i8| digits).ok_or_else(wrong)
    });
    let mut next = || parts.next().transpose();
    let (hour, minute) = (next()?.ok_or_else(wrong)?, next()?.ok_or_else(wrong)?);
    let second = next()?.unwrap_or(0);
    let whole = next()?.is_none();
    Time::new(hour, minute, second, 0).ok().filter(|_| whole).ok_or_else(|| wrong().into())
}

/// See [`time_of_day`].
#[derive(Clone, Debug)]
pub struct TimeOfDay {
    zone: TimeZone,
    from: Time,
    until: Time,
    clock: Arc<dyn Clock>,
}

impl TimeOfDay {
    /// Replaces the system's clock, for tests.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }
}

impl Condition for TimeOfDay {
    fn holds(&self, _: &RequestHead<'_>) -> bool {
        let micros = i64::try_from(self.clock.now().as_micros()).unwrap_or(i64::MAX);
        // Beyond the year 9999 it is for ever the last instant of that year.
        let now = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
        let time = self.zone.to_datetime(now).time();
        if self.from < self.until {
            self.from <= time && time < self.until
        } else {
            self.from <= time || time < self.until
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::time::{ManualClock, Timestamp};

    fn holds(zone: &str, from: &str, until: &str, at: &str) -> bool {
        let at: jiff::Timestamp = at.parse().unwrap();
        let clock = ManualClock::new(Timestamp::from_micros(at.as_microsecond().try_into().unwrap()));
        time_of_day(zone, from, until).clock(clock).holds(&RequestHead::of(&Request::new(())))
    }

    #[test]
    fn it_is_the_time_there_that_counts() {
        // Tokyo is nine hours ahead of UTC, all year.
        for (at, expected) in [
            ("2026-03-01T15:59:59.999999Z", false),
            ("2026-03-01T16:00:00Z", true),
            ("2026-03-01T20:59:59.999999Z", true),
            ("2026-03-01T21:00:00Z", false),
        ] {
            assert_eq!(holds("Asia/Tokyo", "1:00", "6:00", at), expected, "{at}");
        }
    }

    #[test]
    fn it_may_go_over_midnight_and_all_day() {
        for (at, expected) in [("T21:59:59Z", false), ("T22:00:00Z", true), ("T05:59:59Z", true), ("T06:00:00Z", false)]
        {
            assert_eq!(holds("UTC", "22:00", "6:00", &format!("2026-03-01{at}")), expected, "{at}");
        }
        assert!(holds("UTC", "0:00", "0:00", "2026-03-01T12:00:00Z"));
    }

    #[test]
    fn summer_time_moves_it() {
        // 2:30 in Berlin is 1:30 UTC in winter, and 0:30 in summer.
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-01-10T01:30:00Z"));
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-07-10T00:30:00Z"));
        assert!(!holds("Europe/Berlin", "2:30", "2:31", "2026-07-10T01:30:00Z"));
        // On 25 October 2026 it comes twice; on 29 March never.
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-10-25T00:30:00Z"));
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-10-25T01:30:00Z"));
        for minute in 0..180 {
            let at = format!("2026-03-29T{:02}:{:02}:00Z", minute / 60, minute % 60);
            assert!(!holds("Europe/Berlin", "2:30", "2:31", &at), "{at}");
        }
    }

    #[test]
    fn the_last_instant_of_all_is_one() {
        let clock = ManualClock::new(Timestamp::MAX);
        let evening = time_of_day("UTC", "22:00", "23:00").clock(clock);
        assert!(evening.holds(&RequestHead::of(&Request::new(()))));
    }

    #[test]
    fn what_is_no_time_or_zone_is_named() {
        for (zone, from, until, told) in [
            ("Europe/Atlantis", "1:00", "6:00", "\"Europe/Atlantis\""),
            ("UTC", "1", "6:00", "\"1\""),
            ("UTC", "1:00", "24:00", "\"24:00\""),
            ("UTC", "1:00", "6:00:00:00", "\"6:00:00:00\""),
            ("UTC", "+1:00", "6:00", "\"+1:00\""),
            ("UTC", "", "6:00", "\"\""),
        ] {
            let error = try_time_of_day(zone, from, until).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
