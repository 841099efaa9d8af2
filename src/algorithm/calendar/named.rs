//! Time zones of the IANA database.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::dates::{self, DAY, Day, Unit};
use crate::error::ConfigError;

/// A time zone, which stays loaded for as long as the process runs.
pub(in crate::algorithm) struct NamedZone {
    name: String,
    rules: TimeZone,
    /// The current window of each unit.
    windows: [CachedWindow; Unit::COUNT],
}

/// All zones in use: at most as many as the database has.
static LOADED: Mutex<Vec<&'static NamedZone>> = Mutex::new(Vec::new());

impl NamedZone {
    /// Returns the zone of this name, in upper or lower case.
    pub(in crate::algorithm) fn find(name: &str) -> Result<&'static Self, ConfigError> {
        let rules = TimeZone::get(name).ok().filter(|rules| !rules.is_unknown());
        let unknown = || ConfigError::no_time_zone(name);
        let rules = rules.ok_or_else(unknown)?;
        let name = rules.iana_name().ok_or_else(unknown)?.to_owned();
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = loaded.iter().find(|zone| zone.name == name) {
            return Ok(zone);
        }
        let windows = [const { CachedWindow::new() }; Unit::COUNT];
        let zone = Box::leak(Box::new(Self { name, rules, windows }));
        loaded.push(zone);
        Ok(zone)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the seconds by which local time is ahead of UTC at the instant `at`.
    pub(super) fn offset(&self, at: i64) -> i64 {
        // After the last day that jiff supports, in the year 9999, the offset no longer changes.
        let at = Timestamp::from_second(at).unwrap_or(Timestamp::MAX);
        self.rules.to_offset(at).seconds().into()
    }

    pub(super) fn start_of(&self, day: Day) -> i64 {
        let midnight = day * DAY;
        let (year, month, of_month) = dates::date(day);
        let date = match i16::try_from(year) {
            Ok(year) if day < LAST => Date::new(year, month as i8, of_month as i8).ok(),
            _ => None,
        };
        let Some(date) = date else { return midnight - self.offset(i64::MAX) };
        match self.rules.to_ambiguous_timestamp(date.at(0, 0, 0, 0)).offset() {
            AmbiguousOffset::Unambiguous { offset } => midnight - i64::from(offset.seconds()),
            // The first of two midnights.
            AmbiguousOffset::Fold { before, .. } => midnight - i64::from(before.seconds()),
            AmbiguousOffset::Gap { before, after } => {
                // The clock change is no later than midnight would have been.
                let skipped = midnight - i64::from(before.seconds());
                let before = Timestamp::from_second(skipped + 1).unwrap_or(Timestamp::MAX);
                let gap = self.rules.preceding(before).find(|transition| transition.offset() == after);
                gap.map_or(skipped, |gap| gap.timestamp().as_second())
            }
        }
    }

    pub(super) fn cached_window(&self, unit: Unit) -> &CachedWindow {
        &self.windows[unit.index()]
    }
}

/// The last day that jiff supports in every zone.
const LAST: Day = dates::day(9999, 12, 30);

impl PartialEq for NamedZone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for NamedZone {}

impl Hash for NamedZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for NamedZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The window that was last looked up, in one word, so that it is read and written without a lock: its end in seconds
/// (44 bits), and how many whole minutes before that are certainly in it (20 bits).
pub(super) struct CachedWindow(AtomicU64);

const MINUTES: u32 = 20;
const MOST: u64 = (1 << MINUTES) - 1;

impl CachedWindow {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the end of the window that contains `at`, whose start and end `find` returns if it is not cached.
    pub(super) fn end(&self, at: i64, find: impl FnOnce() -> (i64, i64)) -> i64 {
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
    fn a_window_is_looked_up_once() {
        let current = CachedWindow::new();
        let none = || unreachable!("it is cached");
        for (start, end) in [(0, 86_400), (1_000_000, 32_622_400), (1 << 42, (1 << 42) + 82_830)] {
            assert_eq!(current.end(start, || (start, end)), end);
            assert_eq!(current.end(end - 1, none), end);
            assert_eq!(current.end(start + 60, none), end);
            assert_eq!(current.end(end, || (end, end + 60)), end + 60);
            assert_eq!(current.end(end - 1, || (start, end)), end, "a clock that stepped back");
        }
    }

    #[test]
    fn a_window_longer_than_the_compact_form_is_exact() {
        let current = CachedWindow::new();
        let (start, end) = (1_000, 3_155_760_000_000);
        assert_eq!(current.end(start, || (start, end)), end);
        assert_eq!(current.end(start + 60, || (start, end)), end);
        assert_eq!(current.end(end - 60, || unreachable!("it is cached")), end);
    }

    /// In Toronto, 1919, clocks went from 23:30 to 0:30. Nothing like it has happened since 1970.
    #[test]
    fn a_day_whose_midnight_is_skipped_begins_after_the_gap() {
        let toronto = NamedZone::find("America/Toronto").unwrap();
        let began: Timestamp = "1919-03-31T04:30:00Z".parse().unwrap();
        assert_eq!(toronto.start_of(dates::day(1919, 3, 31)), began.as_second());
    }

    #[test]
    fn a_zone_is_loaded_once() {
        let zones = ["Europe/Berlin", "europe/berlin"].map(|name| NamedZone::find(name).unwrap());
        assert!(std::ptr::eq(zones[0], zones[1]));
        assert_ne!(zones[0], NamedZone::find("Europe/Paris").unwrap());
    }
}
