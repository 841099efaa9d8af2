//! Time zones of the IANA's database.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};

use crate::algorithm::calendar::{DAY, Unit};
use crate::algorithm::civil::{self, Day};
use crate::error::{ConfigError, ConfigErrorKind};

/// A zone that is known for as long as the process lives.
#[derive(Clone, Copy)]
pub(in crate::algorithm) struct Named(&'static Known);

struct Known {
    name: String,
    rules: TimeZone,
    /// The present window of each unit.
    current: [Current; Unit::UNITS],
}

/// All zones that were asked for: no more than there are in the database, as no other has a name.
static KNOWN: Mutex<Vec<&'static Known>> = Mutex::new(Vec::new());

impl Named {
    /// The zone of this name, in any case.
    pub(in crate::algorithm) fn find(name: &str) -> Result<Self, ConfigError> {
        let rules = TimeZone::get(name).ok().filter(|rules| !rules.is_unknown());
        let unknown = || ConfigErrorKind::TimeZone { zone: name.to_owned() };
        let rules = rules.ok_or_else(unknown)?;
        let name = rules.iana_name().ok_or_else(unknown)?.to_owned();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = known.iter().find(|zone| zone.name == name) {
            return Ok(Self(zone));
        }
        let current = [const { Current::new() }; Unit::UNITS];
        let zone = Box::leak(Box::new(Known { name, rules, current }));
        known.push(zone);
        Ok(Self(zone))
    }

    pub(super) fn name(self) -> &'static str {
        &self.0.name
    }

    /// How many seconds local time is ahead of UTC at the instant `at`.
    pub(super) fn offset(self, at: i64) -> i64 {
        // From the last day on that jiff knows, in the year 9999, nothing changes any more.
        let at = Timestamp::from_second(at).unwrap_or(Timestamp::MAX);
        self.0.rules.to_offset(at).seconds().into()
    }

    pub(super) fn start_of(self, day: Day) -> i64 {
        let midnight = day * DAY;
        let (year, month, of_month) = civil::date(day);
        let date = match i16::try_from(year) {
            Ok(year) if day < LAST => Date::new(year, month as i8, of_month as i8).ok(),
            _ => None,
        };
        let Some(date) = date else { return midnight - self.offset(i64::MAX) };
        match self.0.rules.to_ambiguous_timestamp(date.at(0, 0, 0, 0)).offset() {
            AmbiguousOffset::Unambiguous { offset } => midnight - i64::from(offset.seconds()),
            // Of a midnight that comes twice, the first.
            AmbiguousOffset::Fold { before, .. } => midnight - i64::from(before.seconds()),
            AmbiguousOffset::Gap { before, after } => {
                // It is skipped no later than it would have been.
                let skipped = midnight - i64::from(before.seconds());
                let before = Timestamp::from_second(skipped + 1).unwrap_or(Timestamp::MAX);
                let gap = self.0.rules.preceding(before).find(|transition| transition.offset() == after);
                gap.map_or(skipped, |gap| gap.timestamp().as_second())
            }
        }
    }

    pub(super) fn current(self, unit: Unit) -> &'static Current {
        &self.0.current[unit.place()]
    }
}

/// The last day that jiff knows everywhere.
const LAST: Day = civil::day(9999, 12, 30);

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

/// A window, or as much of its end as fits into one word, so that whoever reads it reads all of it: its end in
/// seconds (44 bits), and how many minutes before it surely are of it.
pub(in crate::algorithm) struct Current(AtomicU64);

const MINUTES: u32 = 20;
const MOST: u64 = (1 << MINUTES) - 1;

impl Current {
    /// None is known.
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The end of the window that holds `at`, which `find` finds, from its start to its end.
    #[inline]
    pub(in crate::algorithm) fn end(&self, at: i64, find: impl FnOnce() -> (i64, i64)) -> i64 {
        let packed = self.0.load(Ordering::Relaxed);
        let (end, minutes) = ((packed >> MINUTES) as i64, (packed & MOST) as i64);
        if (end - 60 * minutes..end).contains(&at) {
            return end;
        }
        let (start, end) = find();
        let minutes = ((end - start) as u64 / 60).min(MOST);
        self.0.store((end as u64) << MINUTES | minutes, Ordering::Relaxed);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_found_once() {
        let current = Current::new();
        let none = || unreachable!("it is known");
        for (start, end) in [(0, 86_400), (1_000_000, 32_622_400), (1 << 42, (1 << 42) + 82_830)] {
            assert_eq!(current.end(start, || (start, end)), end);
            assert_eq!(current.end(end - 1, none), end);
            assert_eq!(current.end(start + 60, none), end);
            assert_eq!(current.end(end, || (end, end + 60)), end + 60);
            assert_eq!(current.end(end - 1, || (start, end)), end, "a clock that stepped back");
        }
    }

    #[test]
    fn what_is_too_long_is_still_right() {
        let current = Current::new();
        let (start, end) = (1_000, 3_155_760_000_000);
        assert_eq!(current.end(start, || (start, end)), end);
        assert_eq!(current.end(start + 60, || (start, end)), end);
        assert_eq!(current.end(end - 60, || unreachable!("it is near")), end);
    }

    /// In Toronto, 1919, clocks went from 23:30 to 0:30. Nothing like it has happened since 1970.
    #[test]
    fn a_midnight_in_the_middle_of_what_is_skipped_is_its_end() {
        let toronto = Named::find("America/Toronto").unwrap();
        let began: Timestamp = "1919-03-31T04:30:00Z".parse().unwrap();
        assert_eq!(toronto.start_of(civil::day(1919, 3, 31)), began.as_second());
    }

    #[test]
    fn a_zone_is_known_once() {
        let zones = ["Europe/Berlin", "europe/berlin"].map(|name| Named::find(name).unwrap());
        assert!(std::ptr::eq(zones[0].0, zones[1].0));
        assert_ne!(zones[0], Named::find("Europe/Paris").unwrap());
    }
}
