//! Reads typed fields of YAML mappings, and reports what is wrong with them.

use std::rc::Rc;

use super::problem::{Position, Problem, RulesError};
use super::yaml::{Node, Value};

/// The fields of a mapping.
pub(super) struct Fields<'a> {
    pub(super) at: Position,
    fields: Vec<(&'a str, &'a Node)>,
    /// Fields that were probably meant by unknown names, which are reported.
    meant: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of `node`, described as `what`, which may have the fields `known`. `advise` explains unknown
    /// fields.
    pub(super) fn of(
        node: &'a Node,
        what: &str,
        known: &[&'a str],
        advise: impl Fn(&str) -> Option<String>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let Value::Mapping(pairs) = &node.value else {
            let message = format!("{what} is {}: write `{}: …` here", node.kind(), known[0]);
            problems.push(Problem::new(node.at, message));
            return None;
        };
        let mut fields: Vec<(&str, &Node)> = Vec::new();
        let mut meant = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar { text, .. } = &key.value else {
                problems.push(Problem::new(key.at, format!("the name of a field is {}: write text", key.kind())));
                continue;
            };
            if text == "<<" {
                problems.push(Problem::new(key.at, "merge keys are not supported: write the fields out"));
                meant.extend_from_slice(known);
            } else if !known.contains(&text.as_str()) {
                // Later problems are only counted. Advice for thousands of them would take a second.
                let advised =
                    if problems.len() < RulesError::MAX_PROBLEMS { closest(text, known.iter().copied()) } else { None };
                meant.extend(advised);
                problems.push(Problem::new(key.at, unknown(text, known, advise(text), advised)));
            } else if fields.iter().any(|(name, _)| name == text) {
                problems.push(Problem::new(key.at, format!("`{text}` is defined twice: keep one")));
            } else {
                fields.push((text, value));
            }
        }
        Some(Self { at: node.at, fields, meant })
    }

    /// Returns the field called `name`, unless it is empty.
    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        self.written(name).filter(|node| !node.is_null())
    }

    /// Returns whether there is neither a field called `name` nor one that was probably meant.
    pub(super) fn lacks(&self, name: &str) -> bool {
        self.get(name).is_none() && !self.meant.contains(&name)
    }

    /// Returns the field called `name`, even if it is empty.
    pub(super) fn written(&self, name: &str) -> Option<&'a Node> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, node)| *node)
    }

    pub(super) fn text(&self, name: &str, problems: &mut Vec<Problem>) -> Option<(&'a str, Position)> {
        let node = self.get(name)?;
        Some((noted(text(node, name), problems)?, node.at))
    }

    /// Returns the text of a required field, which must not be empty.
    pub(super) fn required(
        &self,
        name: &str,
        otherwise: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<(&'a str, Position)> {
        let (text, at) = if self.lacks(name) { ("", self.at) } else { self.text(name, problems)? };
        if text.is_empty() {
            problems.push(Problem::new(at, otherwise));
            return None;
        }
        Some((text, at))
    }

    pub(super) fn integer(&self, name: &str, problems: &mut Vec<Problem>) -> Option<(u32, Position)> {
        let node = self.get(name)?;
        Some((noted(integer(node, name), problems)?, node.at))
    }

    /// Returns whether the field exists and is true.
    pub(super) fn flag(&self, name: &str, problems: &mut Vec<Problem>) -> bool {
        self.get(name).and_then(|node| noted(boolean(node, name), problems)).unwrap_or(false)
    }

    pub(super) fn list(&self, name: &str, problems: &mut Vec<Problem>) -> &'a [Rc<Node>] {
        match self.get(name) {
            None => &[],
            Some(Node { value: Value::List(items), .. }) => items,
            Some(node) => {
                let message = format!("`{name}` is {}: write a list, with a dash before each item", node.kind());
                problems.push(Problem::new(node.at, message));
                &[]
            }
        }
    }

    /// Returns one of `choices` by its name.
    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)], problems: &mut Vec<Problem>) -> Option<T> {
        let (chosen, at) = self.text(name, problems)?;
        let found = choices.iter().find(|(choice, _)| *choice == chosen);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            let advice = closest(chosen, names.iter().copied())
                .map_or_else(|| format!("use {}", one_of(&names)), |name| format!("did you mean `{name}`?"));
            problems.push(Problem::new(at, format!("`{name}` can't be {chosen:?}: {advice}")));
        }
        found.map(|(_, value)| *value)
    }
}

fn noted<T>(read: Result<T, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    read.map_err(|problem| problems.push(problem)).ok()
}

pub(super) fn text<'a>(node: &'a Node, name: &str) -> Result<&'a str, Problem> {
    match &node.value {
        Value::Scalar { text, .. } if !node.is_null() => Ok(text),
        _ => Err(Problem::new(node.at, format!("`{name}` is {}: write text", node.kind()))),
    }
}

fn integer(node: &Node, name: &str) -> Result<u32, Problem> {
    let most = u32::MAX;
    let wrong = |advice: String| Problem::new(node.at, format!("`{name}` is {}: {advice}", node.kind()));
    let Value::Scalar { text, plain } = &node.value else {
        return Err(wrong("write a whole number".into()));
    };
    let is_number = |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    // `1_000`, with one underscore between digits.
    let is_digits = text.split('_').all(is_number);
    let has_stray_underscores = !is_digits && is_number(&text.replace('_', ""));
    match text.replace('_', "").parse::<u32>() {
        Ok(_) if is_digits && !plain => Err(wrong("write the number without quotes".into())),
        // YAML 1.1, in which files for Envoy's service are written, reads such numbers as octal.
        Ok(_) if is_digits && text.len() > 1 && text.starts_with('0') => {
            Err(wrong("write the number without leading zeros".into()))
        }
        Ok(number) if is_digits => Ok(number),
        Err(_) if is_digits => Err(wrong(format!("use at most {most}"))),
        _ if has_stray_underscores => Err(wrong("write an underscore only between two digits, as in `1_000`".into())),
        _ => Err(wrong(format!("write a whole number, from 0 to {most}"))),
    }
}

/// Reads a boolean, with the words of YAML 1.1, in which files for Envoy's service are written.
fn boolean(node: &Node, name: &str) -> Result<bool, Problem> {
    if let Value::Scalar { text, plain: true } = &node.value {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => return Ok(true),
            "false" | "no" | "off" | "n" => return Ok(false),
            _ => {}
        }
    }
    Err(Problem::new(node.at, format!("`{name}` is {}: write true or false", node.kind())))
}

fn unknown(name: &str, known: &[&str], advice: Option<String>, meant: Option<&str>) -> String {
    let advice = advice
        .or_else(|| meant.map(|close| format!("did you mean `{close}`?")))
        .unwrap_or_else(|| format!("use {}", one_of(known)));
    format!("there is no field `{name}` here: {advice}")
}

/// Returns the name that was probably meant.
pub(super) fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No name is that long, and the distance would take time.
    if name.len() > 64 {
        return None;
    }
    let bare = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    let name = bare(name);
    let distance = |known: &str| strsim::osa_distance(&name, &bare(known));
    let names: Vec<(usize, &str)> = names.map(|known| (distance(known), known)).collect();
    let near = names.iter().filter(|(distance, _)| *distance <= name.len().div_ceil(4));
    let longer = || names.iter().find(|(_, known)| name.len() > 3 && bare(known).contains(&name));
    near.min_by_key(|(distance, _)| *distance).or_else(longer).map(|(_, known)| *known)
}

/// Joins names as in `a, b or c`.
pub(super) fn one_of(names: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for (index, name) in names.iter().enumerate() {
        let joint = if index == 0 {
            ""
        } else if index + 1 == names.len() {
            " or "
        } else {
            ", "
        };
        text.push_str(joint);
        text.push('`');
        text.push_str(name.as_ref());
        text.push('`');
    }
    text
}
