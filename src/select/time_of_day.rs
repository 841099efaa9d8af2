//! A condition on the time of day in a time zone.

use std::sync::Arc;

use jiff::civil::Time;
use jiff::tz::TimeZone;

use super::Condition;
use crate::error::{ConfigError, or_panic};
use crate::key::head::RequestHead;
use crate::time::{Clock, SystemClock};

/// Matches requests between two times of day (`"1:00"`, `"18:30"` or `"18:30:15"`; `until` is excluded) in an IANA time
/// zone (`"Europe/Berlin"`, `"UTC"`). If `until` is not later than `from`, the span extends over midnight.
///
/// When clocks are set back, the condition holds in both passes of the repeated hour. It reads the wall
/// clock, not the store's clock; [`TimeOfDay::clock`] replaces it in tests.
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
/// Panics if the time zone is unknown, or a time is not valid. [`try_time_of_day`] returns an error instead.
#[must_use]
#[track_caller]
pub fn time_of_day(zone: &str, from: &str, until: &str) -> TimeOfDay {
    or_panic(try_time_of_day(zone, from, until))
}

/// Fallible version of [`time_of_day`].
///
/// # Errors
///
/// Returns an error if the time zone is unknown, or a time is not valid.
pub fn try_time_of_day(zone: &str, from: &str, until: &str) -> Result<TimeOfDay, ConfigError> {
    let zone = TimeZone::get(zone).map_err(|_| ConfigError::no_time_zone(zone))?;
    Ok(TimeOfDay { zone, from: parse_time(from)?, until: parse_time(until)?, clock: Arc::new(SystemClock::new()) })
}

/// Parses `H:MM` or `H:MM:SS`.
fn parse_time(text: &str) -> Result<Time, ConfigError> {
    // `strptime` skips whitespace, and reads a second of 60 as 59.
    let is_exact = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') && !text.ends_with(":60");
    let time = Time::strptime("%H:%M", text).or_else(|_| Time::strptime("%H:%M:%S", text));
    time.ok().filter(|_| is_exact).ok_or_else(|| {
        ConfigError::new(format!("{text:?} is not a time of day: write hours and minutes, from \"0:00\" to \"23:59\""))
    })
}

/// A condition on the time of day. Returned by [`time_of_day`].
#[derive(Clone, Debug)]
pub struct TimeOfDay {
    zone: TimeZone,
    from: Time,
    until: Time,
    clock: Arc<dyn Clock>,
}

impl TimeOfDay {
    /// Sets the clock. Defaults to the system clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }
}

impl Condition for TimeOfDay {
    fn holds(&self, _: &RequestHead<'_>) -> bool {
        // Always within jiff's range.
        let now = jiff::Timestamp::from_microsecond(self.clock.wall_time().as_micros() as i64).unwrap_or_default();
        let time = self.zone.to_datetime(now).time();
        if self.from < self.until {
            self.from <= time && time < self.until
        } else {
            self.from <= time || time < self.until
        }
    }

    fn describe(&self) -> String {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        format!("time of day is {} to {} in {zone}", self.from, self.until)
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
    fn times_are_local_to_the_zone() {
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
    fn spans_may_cross_midnight_or_last_all_day() {
        for (at, expected) in [("T21:59:59Z", false), ("T22:00:00Z", true), ("T05:59:59Z", true), ("T06:00:00Z", false)]
        {
            assert_eq!(holds("UTC", "22:00", "6:00", &format!("2026-03-01{at}")), expected, "{at}");
        }
        assert!(holds("UTC", "0:00", "0:00", "2026-03-01T12:00:00Z"));
        // Numbers may have one digit.
        assert!(holds("UTC", "1:2:3", "01:02:04", "2026-03-01T01:02:03Z"));
    }

    #[test]
    fn daylight_saving_time_shifts_the_span() {
        // 2:30 in Berlin is 1:30 UTC in winter, and 0:30 in summer.
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-01-10T01:30:00Z"));
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-07-10T00:30:00Z"));
        assert!(!holds("Europe/Berlin", "2:30", "2:31", "2026-07-10T01:30:00Z"));
        // On 25 October 2026, 2:30 occurs twice; on 29 March, never.
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-10-25T00:30:00Z"));
        assert!(holds("Europe/Berlin", "2:30", "2:31", "2026-10-25T01:30:00Z"));
        for minute in 0..180 {
            let at = format!("2026-03-29T{:02}:{:02}:00Z", minute / 60, minute % 60);
            assert!(!holds("Europe/Berlin", "2:30", "2:31", &at), "{at}");
        }
    }

    #[test]
    fn the_description_names_the_span_and_the_zone() {
        let span = time_of_day("Europe/Berlin", "22:00", "6:30:15");
        assert_eq!(span.describe(), "time of day is 22:00:00 to 06:30:15 in Europe/Berlin");
    }

    #[test]
    fn the_latest_timestamp_is_supported() {
        let clock = ManualClock::new(Timestamp::MAX);
        // 2112-09-17, 23:53:47.
        let evening = time_of_day("UTC", "23:00", "23:59").clock(clock);
        assert!(evening.holds(&RequestHead::of(&Request::new(()))));
    }

    #[test]
    fn errors_name_the_invalid_time_or_zone() {
        for (zone, from, until, quoted) in [
            ("Europe/Atlantis", "1:00", "6:00", "\"Europe/Atlantis\""),
            ("UTC", "1", "6:00", "\"1\""),
            ("UTC", "1:00", "24:00", "\"24:00\""),
            ("UTC", "1:00", "6:00:00:00", "\"6:00:00:00\""),
            ("UTC", "+1:00", "6:00", "\"+1:00\""),
            ("UTC", "1:00", "23:59:60", "\"23:59:60\""),
            ("UTC", "1:00", "6:60", "\"6:60\""),
            ("UTC", " 1:00", "6:00", "\" 1:00\""),
            ("UTC", "1:00", "6: 00", "\"6: 00\""),
            ("UTC", "1:00 ", "6:00", "\"1:00 \""),
            ("UTC", "1:00:\t5", "6:00", "\"1:00:\\t5\""),
            ("UTC", "001:00", "6:00", "\"001:00\""),
            ("UTC", "1:000", "6:00", "\"1:000\""),
            ("UTC", "-1:00", "6:00", "\"-1:00\""),
            ("UTC", "1:00", "6:00:", "\"6:00:\""),
            ("UTC", "", "6:00", "\"\""),
        ] {
            let error = try_time_of_day(zone, from, until).unwrap_err().to_string();
            assert!(error.contains(quoted), "{error}");
        }
    }
}
