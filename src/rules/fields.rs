//! Reads typed fields of YAML mappings. Reading a field returns a problem if its value is wrong.

use std::rc::Rc;
use std::time::Duration;

use super::error::Problem;
use super::yaml::{YamlNode, YamlValue};
use crate::error::{ConfigError, Position};

pub(super) const FILE: &[&str] = &["domain", "descriptors"];

pub(super) const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
    "metadata",
];

/// The fields of rates.
pub(super) const RATE: &[&str] = &[
    "unit",
    "period",
    "algorithm",
    "burst",
    "refill",
    "buckets",
    "rounding",
    "waiting",
    "weight",
    "calendar",
    "starts",
    "day",
    "cost",
    "debt",
    "lease",
];

/// The fields of concurrency limits, which have none of those of rates.
pub(super) const CONCURRENCY: &[&str] = &["concurrent", "time_to_live", "longest_hold", "until"];

/// The fields of both kinds of limits.
pub(super) const LIMIT: &[&str] = &["soft", "penalty", "on_store_error", "nodes", "overridable"];

/// The fields of rules with and without a limit.
pub(super) const RULE: &[&str] =
    &["requests_per_unit", "unlimited", "name", "replaces", "shadow_mode", "key", "on_missing_key"];

pub(super) const PENALTY: &[&str] = &["denials", "within", "locked_out_for", "up_to", "remembered_for"];

/// Where the fields of other mappings belong.
const PLACES: &[(&[&str], &str)] = &[
    (DESCRIPTOR, "it belongs beside `rate_limit`, not in it"),
    (RATE, "it belongs in `rate_limit`"),
    (CONCURRENCY, "it belongs in `rate_limit`"),
    (LIMIT, "it belongs in `rate_limit`"),
    (RULE, "it belongs in `rate_limit`"),
    (FILE, "it belongs at the top of the file"),
];

/// Fields, and the names that people write for them.
const SYNONYMS: &[(&str, &[&str])] = &[
    ("period", &["unit_multiplier"]),
    ("requests_per_unit", &["limit", "max", "requests"]),
    ("burst", &["capacity"]),
    ("concurrent", &["slots", "in_flight", "max_concurrent"]),
    ("time_to_live", &["ttl"]),
    ("denials", &["after", "strikes", "count"]),
    ("within", &["period", "unit", "span"]),
    ("locked_out_for", &["ban", "for", "block", "block_for", "duration"]),
    ("up_to", &["max", "longest", "doubling_up_to"]),
];

/// The advice where two limits are given to one descriptor.
pub(super) const SECOND_LIMIT: &str =
    ", or give a second limit to a descriptor with the same key and no value that is nested in it";

impl YamlNode {
    /// Checks that this node, described as `what`, is a mapping with no other fields than `known`.
    pub(super) fn check_fields(&self, what: &str, known: &[&str]) -> Result<(), Problem> {
        let YamlValue::Mapping(entries) = &self.value else {
            let is_second = matches!(self.value, YamlValue::List(_)) && known.contains(&"unit");
            let advice = if is_second { SECOND_LIMIT } else { "" };
            let message = format!("{what} is {}: write `{}: …` here{advice}", self.kind(), known[0]);
            return Err(Problem::new(self.at, message));
        };
        let mut names: Vec<&str> = Vec::new();
        for [key, _] in entries.as_chunks().0 {
            let message = match key.as_text() {
                Err(_) => format!("the name of a field is {}: write text", key.kind()),
                Ok("<<") => "merge keys are not supported: write the fields out".to_owned(),
                Ok(name) if !known.contains(&name) => unknown_field(name, known),
                Ok(name) if names.contains(&name) => {
                    let advice = if name == "rate_limit" { SECOND_LIMIT } else { "" };
                    format!("`{name}` is defined twice: keep one{advice}")
                }
                Ok(name) => {
                    names.push(name);
                    continue;
                }
            };
            return Err(Problem::new(key.at, message));
        }
        Ok(())
    }

    /// Returns the field called `name`, even if it is empty.
    pub(super) fn written(&self, name: &str) -> Option<&Rc<Self>> {
        let YamlValue::Mapping(entries) = &self.value else { return None };
        entries.as_chunks().0.iter().find(|[key, _]| key.as_text() == Ok(name)).map(|[_, value]| value)
    }

    /// Returns the field called `name`, unless it is empty.
    pub(super) fn get(&self, name: &str) -> Option<&Rc<Self>> {
        self.written(name).filter(|node| !node.is_null())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the position of a field, or of the mapping if it lacks the field.
    pub(super) fn position(&self, name: &str) -> Position {
        self.get(name).map_or(self.at, |node| node.at)
    }

    /// Creates a problem with a field.
    pub(super) fn problem(&self, name: &str, message: impl ToString) -> Problem {
        Problem::new(self.position(name), message)
    }

    /// Returns an error as a problem with a field.
    pub(super) fn check<T>(&self, name: &str, result: Result<T, impl Into<ConfigError>>) -> Result<T, Problem> {
        result.map_err(|error| self.problem(name, error.into()))
    }

    /// Returns a problem with a field if it exists and `is_wrong`.
    pub(super) fn reject_if(&self, is_wrong: bool, name: &str, message: impl ToString) -> Result<(), Problem> {
        if is_wrong && self.has(name) { Err(self.problem(name, message)) } else { Ok(()) }
    }

    /// Parses this node, which is a field called `name` or an item of it. The error of `parse` says what to write.
    pub(super) fn parse_as<'a, T>(
        &'a self,
        name: &str,
        parse: impl FnOnce(&'a Self) -> Result<T, String>,
    ) -> Result<T, Problem> {
        parse(self).map_err(|advice| Problem::new(self.at, format!("`{name}` is {}: {advice}", self.kind())))
    }

    /// Parses a field, if it exists.
    pub(super) fn parse<'a, T>(
        &'a self,
        name: &str,
        parse: impl FnOnce(&'a Self) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        self.get(name).map(|node| node.parse_as(name, parse)).transpose()
    }

    /// Returns the text of a field, unless it is empty.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        Ok(self.parse(name, Self::as_text)?.filter(|text| !text.is_empty()))
    }

    /// Returns the text of a required field, which must not be empty.
    pub(super) fn required(&self, name: &str, otherwise: &str) -> Result<&str, Problem> {
        self.text(name)?.ok_or_else(|| self.problem(name, otherwise))
    }

    pub(super) fn integer(&self, name: &str) -> Result<Option<u32>, Problem> {
        self.parse(name, integer)
    }

    /// Returns a number that can't be 0.
    pub(super) fn positive(&self, name: &str) -> Result<Option<u32>, Problem> {
        self.parse(name, |node| match integer(node)? {
            0 => Err("use at least 1, or leave it out".to_owned()),
            number => Ok(number),
        })
    }

    pub(super) fn duration(&self, name: &str) -> Result<Option<Duration>, Problem> {
        self.parse(name, |node| duration(node.as_text()?))
    }

    /// Returns whether the field exists and is true.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        Ok(self.parse(name, boolean)?.unwrap_or(false))
    }

    pub(super) fn list(&self, name: &str) -> Result<&[Rc<Self>], Problem> {
        let items = self.parse(name, |node| match &node.value {
            YamlValue::List(items) => Ok(items.as_slice()),
            _ => Err("write a list, with a dash before each item".to_owned()),
        })?;
        Ok(items.unwrap_or_default())
    }

    /// Returns one of `choices` by its name, in any case. `otherwise` says what else can be written.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
        otherwise: &str,
    ) -> Result<Option<T>, Problem> {
        self.parse(name, |node| {
            let text = node.as_text()?;
            let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            found.map(|(_, choice)| *choice).ok_or_else(|| suggestion(text, &names, otherwise))
        })
    }
}

/// Describes an unknown field, and where it belongs or what to write instead.
fn unknown_field(name: &str, known: &[&str]) -> String {
    let synonym = SYNONYMS.iter().find(|(field, others)| known.contains(field) && others.contains(&name));
    let advice = match (synonym, PLACES.iter().find(|(fields, _)| fields.contains(&name))) {
        (Some((field, _)), _) => did_you_mean(field),
        (None, Some((_, place))) => (*place).to_owned(),
        (None, None) => suggestion(name, known, ""),
    };
    format!("there is no field `{name}` here: {advice}")
}

fn integer(node: &YamlNode) -> Result<u32, String> {
    let most = u32::MAX;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = node.as_text().unwrap_or_default();
    let digits = text.replace('_', "");
    if !is_number(&digits) {
        return Err(format!("write a whole number, from 0 to {most}"));
    }
    // `1_000`, with one underscore between digits.
    if !text.split('_').all(is_number) {
        return Err("write an underscore only between two digits, as in `1_000`".to_owned());
    }
    if !node.is_plain() {
        return Err("write the number without quotes".to_owned());
    }
    // YAML 1.1, in which files for Envoy's service are written, reads such numbers as octal.
    if text.len() > 1 && text.starts_with('0') {
        return Err("write the number without leading zeros".to_owned());
    }
    digits.parse().map_err(|_| format!("use at most {most}"))
}

/// Reads a boolean, with the words of YAML 1.1, in which files for Envoy's service are written.
fn boolean(node: &YamlNode) -> Result<bool, String> {
    match node.as_text().unwrap_or_default().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" if node.is_plain() => Ok(true),
        "false" | "no" | "off" | "n" if node.is_plain() => Ok(false),
        "true" | "false" => Err("write it without quotes".to_owned()),
        _ => Err("write true or false".to_owned()),
    }
}

/// The units of durations, in µs.
const UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("µs", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("w", 604_800_000_000),
];

/// Parses a duration such as `90s`, `1h30m` or `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let (mut micros, mut rest) = (0_u64, text);
    while !rest.is_empty() || text.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, behind) = behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        if unit.is_empty() && !number.is_empty() {
            return Err(format!("add a unit, as in `{number}s`"));
        }
        let Some((_, unit)) = UNITS.iter().find(|(name, _)| *name == unit && !number.is_empty()) else {
            return Err("write whole numbers of us, ms, s, m, h, d or w, as in `90s`, `1h30m` or `30d`".to_owned());
        };
        let sum = number.parse().ok().and_then(|number: u64| number.checked_mul(*unit)?.checked_add(micros));
        (micros, rest) = (sum.ok_or("use at most 366 days")?, behind);
    }
    if micros == 0 { Err("use at least 1us".to_owned()) } else { Ok(Duration::from_micros(micros)) }
}

/// Suggests the known name that was probably meant, or else all of them and what else can be written.
fn suggestion(name: &str, known: &[&str], otherwise: &str) -> String {
    closest(name, known).map_or_else(|| format!("use {}{otherwise}", one_of(known)), did_you_mean)
}

fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}

/// Returns the name that was probably meant.
pub(super) fn closest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    // No name is that long, and the distance would take time.
    if name.len() > 64 {
        return None;
    }
    let bare = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    let name = bare(name);
    let distance = |known: &str| match strsim::osa_distance(&name, known) {
        distance if distance <= name.len().div_ceil(4) => Some(distance),
        _ => (name.len() > 3 && known.contains(&name)).then_some(usize::MAX),
    };
    let near = names.iter().filter_map(|known| Some((distance(&bare(known))?, *known)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Joins names as in `a, b or c`.
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [names @ .., last] if !names.is_empty() => format!("`{}` or `{last}`", names.join("`, `")),
        _ => format!("`{}`", names.concat()),
    }
}
