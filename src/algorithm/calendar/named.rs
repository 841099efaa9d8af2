//! Time zones of the IANA database.

use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::error::ConfigError;

/// A time zone, which stays loaded for as long as the process runs.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::algorithm) struct NamedZone {
    name: String,
    rules: TimeZone,
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
        let zone = Box::leak(Box::new(Self { name, rules }));
        loaded.push(zone);
        Ok(zone)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the seconds by which local time is ahead of UTC at the instant `at`.
    pub(super) fn offset(&self, at: i64) -> i64 {
        self.rules.to_offset(Timestamp::from_second(at).unwrap_or(Timestamp::MAX)).seconds().into()
    }

    /// Returns the first instant of a day, which counts from 1 January 1970.
    pub(super) fn start_of(&self, day: i64) -> i64 {
        let date = Date::constant(1970, 1, 1).checked_add(day.days());
        // The first of two midnights. In place of one that is skipped, the first instant after the gap, because all
        // gaps since 1970 that skip a midnight begin with it.
        let start = date.and_then(|date| self.rules.to_timestamp(date.at(0, 0, 0, 0)));
        start.unwrap_or(Timestamp::MAX).as_second()
    }
}

impl Hash for NamedZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::calendar::{Calendar, MAX_EVERY, Unit, Weekday, Zone};

    #[test]
    fn a_zone_is_loaded_once() {
        let zones = ["Europe/Berlin", "europe/berlin"].map(|name| NamedZone::find(name).unwrap());
        assert!(std::ptr::eq(zones[0], zones[1]));
        assert_ne!(zones[0], NamedZone::find("Europe/Paris").unwrap());
    }

    #[test]
    fn the_longest_windows_end_within_the_dates_of_time_zones() {
        let last = (crate::Timestamp::MAX.as_micros() / 1_000_000) as i64;
        for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
            let zone = Zone::Named(NamedZone::find(zone).unwrap());
            for unit in [Unit::Day, Unit::Week(Weekday::Monday), Unit::Month(31), Unit::Year] {
                for (every, at) in [(2_112, 0), (2_112, last), (MAX_EVERY, 0), (MAX_EVERY, last)] {
                    let (start, end) = Calendar { unit, every, zone }.window(at);
                    assert!(start <= at && at < end && end < Timestamp::MAX.as_second(), "{unit:?}: {start} to {end}");
                }
            }
        }
    }
}
