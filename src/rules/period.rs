//! Durations in files.

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const DAY: u64 = 86_400;

/// The units of Envoy's service, in which a month has 30 days and a year 365.
pub(super) const UNITS: &[(&str, Duration)] = &[
    ("second", SECOND),
    ("minute", Duration::from_secs(60)),
    ("hour", Duration::from_secs(3_600)),
    ("day", Duration::from_secs(DAY)),
    ("week", Duration::from_secs(7 * DAY)),
    ("month", Duration::from_secs(30 * DAY)),
    ("year", Duration::from_secs(365 * DAY)),
];

const SUFFIXES: &[(&str, Duration)] = &[
    ("us", Duration::from_micros(1)),
    ("µs", Duration::from_micros(1)),
    ("ms", Duration::from_millis(1)),
    ("s", SECOND),
    ("m", Duration::from_secs(60)),
    ("h", Duration::from_secs(3_600)),
    ("d", Duration::from_secs(DAY)),
    ("w", Duration::from_secs(7 * DAY)),
];

/// Parses a duration such as `90s`, `1h30m` or `500ms` from the field `name`.
pub(super) fn parse(name: &str, text: &str) -> Result<Duration, String> {
    let wrong = |advice: &str| Err(format!("`{name}` is {text:?}: {advice}"));
    let mut rest = text;
    let mut period = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (suffix, behind) = behind.split_at(letters);
        let Some((_, unit)) = SUFFIXES.iter().find(|(known, _)| *known == suffix) else {
            let advice = if suffix.is_empty() && !number.is_empty() {
                format!("add a unit, as in `{number}s`")
            } else {
                "write whole numbers of us, ms, s, m, h, d or w, as in `90s` or `1h30m`".to_owned()
            };
            return wrong(&advice);
        };
        if number.is_empty() {
            return wrong("write a number before the unit, as in `90s`");
        }
        let Ok(number) = number.parse::<u32>() else { return wrong("use a smaller number of a longer unit") };
        let Some(sum) = unit.checked_mul(number).and_then(|span| period.checked_add(span)) else {
            return wrong("use at most 366 days");
        };
        (period, rest) = (sum, behind);
    }
    if text.is_empty() { wrong("write a duration, as in `90s`") } else { Ok(period) }
}
