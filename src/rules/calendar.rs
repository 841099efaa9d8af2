//! Calendar windows: the fields `calendar`, `starts` and `day`.

use super::fields::{self, Fields, one_of};
use super::period;
use super::problem::Problem;
use crate::algorithm::{CalendarWindow, Weekday};
use crate::error::{ConfigError, Fault};

const DAYS: &[(&str, Weekday)] = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

const UNITS: &[&str] = &["day", "week", "month", "year"];

/// Reads a calendar window that allows `limit` requests in each `unit`, if the field `calendar` exists.
pub(super) fn read(fields: &Fields<'_>, limit: u32, problems: &mut Vec<Problem>) -> Option<CalendarWindow> {
    let starts = fields.choice("starts", DAYS, problems);
    let day = fields.integer("day", problems);
    if fields.lacks("calendar") {
        for name in ["starts", "day"] {
            if let Some(node) = fields.get(name) {
                let message = format!(
                    "`{name}` needs a calendar: write `calendar: UTC`, or a time zone such as `Europe/Berlin`, \
                     or leave it out"
                );
                problems.push(Problem::new(node.at, message));
            }
        }
        return None;
    }
    let (zone, zone_at) = fields.text("calendar", problems)?;
    if let Some(node) = fields.get("period") {
        let message = format!("a calendar has no `period`: use `unit`, which can be {}", one_of(UNITS));
        problems.push(Problem::new(node.at, message));
        return None;
    }
    let unit_node = fields.get("unit")?;
    let unit = fields::text(unit_node, "unit").ok()?.to_ascii_lowercase();
    for (name, owner) in [("starts", "week"), ("day", "month")] {
        if let Some(node) = fields.get(name).filter(|_| unit != owner) {
            let message = format!("`{name}` needs `unit: {owner}`: leave it out");
            problems.push(Problem::new(node.at, message));
        }
    }
    let windows = match unit.as_str() {
        "day" => CalendarWindow::daily(limit),
        "week" => CalendarWindow::weekly(limit, starts.unwrap_or_default()),
        "month" => CalendarWindow::monthly(limit),
        "year" => CalendarWindow::yearly(limit),
        _ => {
            // Unknown units are reported elsewhere.
            if period::UNITS.iter().any(|(name, _)| *name == unit) {
                let message =
                    format!("a calendar's `unit` can't be `{unit}`: use {}, or leave `calendar` out", one_of(UNITS));
                problems.push(Problem::new(unit_node.at, message));
            }
            return None;
        }
    };
    let mut noted = |at, read: Result<CalendarWindow, ConfigError>| {
        read.map_err(|error| problems.push(Problem::new(at, error.to_string()))).ok()
    };
    let windows = match day {
        Some((day, at)) if unit == "month" => {
            let day = u8::try_from(day).map_err(|_| Fault::DayOfMonth { day }.into());
            noted(at, day.and_then(|day| windows.try_from_day(day)))?
        }
        _ => windows,
    };
    noted(zone_at, in_zone(windows, zone))
}

#[cfg(feature = "time-zones")]
fn in_zone(windows: CalendarWindow, zone: &str) -> Result<CalendarWindow, ConfigError> {
    windows.try_in_zone(zone)
}

#[cfg(not(feature = "time-zones"))]
fn in_zone(windows: CalendarWindow, zone: &str) -> Result<CalendarWindow, ConfigError> {
    if zone.eq_ignore_ascii_case("UTC") {
        return Ok(windows);
    }
    Err(ConfigError::new(format!("the time zone {zone:?} needs the feature `time-zones`: turn it on, or use \"UTC\"")))
}
