//! Reads typed fields of YAML mappings, and notes what is wrong with them.

use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use super::error::{Problems, RulesError};
use super::yaml::{Value, YamlNode};
use crate::error::Position;

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

pub(super) const LIMIT: &[&str] = &[
    "unit",
    "period",
    "requests_per_unit",
    "unlimited",
    "algorithm",
    "burst",
    "refill",
    "buckets",
    "rounding",
    "waiting",
    "calendar",
    "starts",
    "day",
    "name",
    "replaces",
    "cost",
    "soft",
    "penalty",
    "shadow_mode",
    "key",
    "on_missing_key",
    "on_store_error",
    "nodes",
    "overridable",
];

pub(super) const PENALTY: &[&str] = &["denials", "within", "locked_out_for", "up_to", "remembered_for"];

/// Where the fields of other mappings belong.
const PLACES: &[(&[&str], &str)] = &[
    (DESCRIPTOR, "it belongs beside `rate_limit`, not in it"),
    (LIMIT, "it belongs in `rate_limit`"),
    (FILE, "it belongs at the top of the file"),
];

/// Names that people write for fields, and those fields.
const SYNONYMS: &[(&str, &str)] = &[
    ("unit_multiplier", "period"),
    ("limit", "requests_per_unit"),
    ("max", "requests_per_unit"),
    ("requests", "requests_per_unit"),
    ("capacity", "burst"),
    ("after", "denials"),
    ("strikes", "denials"),
    ("count", "denials"),
    ("period", "within"),
    ("unit", "within"),
    ("span", "within"),
    ("ban", "locked_out_for"),
    ("for", "locked_out_for"),
    ("block", "locked_out_for"),
    ("block_for", "locked_out_for"),
    ("duration", "locked_out_for"),
    ("max", "up_to"),
    ("longest", "up_to"),
    ("doubling_up_to", "up_to"),
];

/// The fields of a mapping. Reading a field notes a problem if its value is wrong.
pub(super) struct Fields<'a> {
    pub(super) at: Position,
    pub(super) problems: &'a Problems,
    fields: Vec<(&'a str, &'a YamlNode)>,
    /// Fields that were probably meant by something else, which is noted.
    meant: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of `node`, described as `what`, which may have the fields `known`.
    pub(super) fn of(node: &'a YamlNode, what: &str, known: &[&'a str], problems: &'a Problems) -> Self {
        let mut fields = Self { at: node.at, problems, fields: Vec::new(), meant: Vec::new() };
        let Value::Mapping(children) = &node.value else {
            problems.note(node.at, format!("{what} is {}: write `{}: …` here", node.kind(), known[0]));
            fields.meant.extend(known);
            return fields;
        };
        for [key, value] in children.as_chunks().0 {
            let Value::Scalar { text: name, .. } = &key.value else {
                problems.note(key.at, format!("the name of a field is {}: write text", key.kind()));
                continue;
            };
            if name == "<<" {
                problems.note(key.at, "merge keys are not supported: write the fields out");
                fields.meant.extend(known);
            } else if !known.contains(&name.as_str()) {
                let synonym = SYNONYMS.iter().find(|(other, field)| other == name && known.contains(field));
                // Later problems are only counted. Advice for thousands of them would take a second.
                let similar = || if problems.len() < RulesError::MAX_PROBLEMS { closest(name, known) } else { None };
                let meant = synonym.map(|(_, field)| *field).or_else(similar);
                fields.meant.extend(meant);
                let place = PLACES.iter().find(|(fields, _)| synonym.is_none() && fields.contains(&name.as_str()));
                let advice = place.map_or_else(|| did_you_mean(meant, known, ""), |(_, place)| (*place).to_owned());
                problems.note(key.at, format!("there is no field `{name}` here: {advice}"));
            } else if fields.written(name).is_some() {
                problems.note(key.at, format!("`{name}` is defined twice: keep one"));
            } else {
                fields.fields.push((name, value));
            }
        }
        fields
    }

    /// Returns the field called `name`, even if it is empty.
    pub(super) fn written(&self, name: &str) -> Option<&'a YamlNode> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, node)| *node)
    }

    /// Returns the field called `name`, unless it is empty.
    pub(super) fn get(&self, name: &str) -> Option<&'a YamlNode> {
        self.written(name).filter(|node| !node.is_null())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns whether there is neither a field called `name` nor one that was probably meant.
    pub(super) fn lacks(&self, name: &str) -> bool {
        !self.has(name) && !self.meant.contains(&name)
    }

    /// Returns the position of a field, or of the mapping if it lacks the field.
    pub(super) fn position(&self, name: &str) -> Position {
        self.get(name).map_or(self.at, |node| node.at)
    }

    /// Notes a problem with a field.
    pub(super) fn note(&self, name: &str, message: impl Display) {
        self.problems.note(self.position(name), message);
    }

    /// Notes that a field should not be here, if it is.
    pub(super) fn reject(&self, name: &str, message: impl Display) {
        if self.has(name) {
            self.note(name, message);
        }
    }

    /// Notes an error as a problem with a field.
    pub(super) fn check<T>(&self, name: &str, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.note(name, error)).ok()
    }

    /// Parses a field. The error of `parse` says what to write.
    pub(super) fn parse<T>(&self, name: &str, parse: impl FnOnce(&'a YamlNode) -> Result<T, String>) -> Option<T> {
        self.parse_item(name, self.get(name)?, parse)
    }

    /// Parses an item of a field.
    pub(super) fn parse_item<T>(
        &self,
        name: &str,
        item: &'a YamlNode,
        parse: impl FnOnce(&'a YamlNode) -> Result<T, String>,
    ) -> Option<T> {
        let wrong = |advice| self.problems.note(item.at, format!("`{name}` is {}: {advice}", item.kind()));
        parse(item).map_err(wrong).ok()
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.parse(name, YamlNode::text)
    }

    /// Returns the text of a required field, which must not be empty.
    pub(super) fn required(&self, name: &str, otherwise: &str) -> &'a str {
        let text = self.text(name);
        if self.lacks(name) || text == Some("") {
            self.note(name, otherwise);
        }
        text.unwrap_or_default()
    }

    pub(super) fn integer(&self, name: &str) -> Option<u32> {
        self.parse(name, integer)
    }

    /// Returns a number that can't be 0.
    pub(super) fn positive(&self, name: &str) -> Option<u32> {
        self.parse(name, |node| match integer(node)? {
            0 => Err("use at least 1, or leave it out".to_owned()),
            number => Ok(number),
        })
    }

    pub(super) fn duration(&self, name: &str) -> Option<Duration> {
        self.parse(name, |node| duration(node.text()?))
    }

    /// Returns whether the field exists and is true.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.parse(name, boolean).unwrap_or(false)
    }

    pub(super) fn list(&self, name: &str) -> &'a [Rc<YamlNode>] {
        let items = self.parse(name, |node| match &node.value {
            Value::List(items) => Ok(items.as_slice()),
            _ => Err("write a list, with a dash before each item".to_owned()),
        });
        items.unwrap_or_default()
    }

    /// Returns one of `choices` by its name, in any case.
    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        self.parse(name, |node| choose(node, choices, ""))
    }
}

/// Returns the choice that a node names. `otherwise` says what else can be written.
pub(super) fn choose<T: Copy>(node: &YamlNode, choices: &[(&str, T)], otherwise: &str) -> Result<T, String> {
    let text = node.text()?;
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    found.map(|(_, choice)| *choice).ok_or_else(|| did_you_mean(closest(text, &names), &names, otherwise))
}

fn integer(node: &YamlNode) -> Result<u32, String> {
    let most = u32::MAX;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = node.text().unwrap_or_default();
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
    match node.text().unwrap_or_default().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" if node.is_plain() => Ok(true),
        "false" | "no" | "off" | "n" if node.is_plain() => Ok(false),
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
            return Err("write whole numbers of us, ms, s, m, h, d or w, as in `90s` or `1h30m`".to_owned());
        };
        let sum = number.parse().ok().and_then(|number: u64| number.checked_mul(*unit)?.checked_add(micros));
        (micros, rest) = (sum.ok_or("use at most 366 days")?, behind);
    }
    if micros == 0 { Err("use at least 1us".to_owned()) } else { Ok(Duration::from_micros(micros)) }
}

fn did_you_mean(meant: Option<&str>, known: &[&str], otherwise: &str) -> String {
    meant.map_or_else(|| format!("use {}{otherwise}", one_of(known)), |meant| format!("did you mean `{meant}`?"))
}

/// Returns the name that was probably meant.
pub(super) fn closest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    // No name is that long, and the distance would take time.
    if name.len() > 64 {
        return None;
    }
    let bare = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    let name = bare(name);
    let names = names.iter().map(|known| (strsim::osa_distance(&name, &bare(known)), *known));
    let near = names.clone().filter(|(distance, _)| *distance <= name.len().div_ceil(4));
    let mut longer = names.filter(|(_, known)| name.len() > 3 && bare(known).contains(&name));
    near.min_by_key(|(distance, _)| *distance).or_else(|| longer.next()).map(|(_, known)| known)
}

/// Joins names as in `a, b or c`.
pub(super) fn one_of(names: &[&str]) -> String {
    let mut names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match (names.pop(), names.join(", ")) {
        (Some(last), others) if !others.is_empty() => format!("{others} or {last}"),
        (last, _) => last.unwrap_or_default(),
    }
}
