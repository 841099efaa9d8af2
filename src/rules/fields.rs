//! Reading what a node should be, and saying what it is instead.

use std::rc::Rc;

use super::problem::{Position, Problem, RulesError};
use super::yaml::{Node, Value};

/// The fields of a mapping.
pub(super) struct Fields<'a> {
    pub(super) at: Position,
    fields: Vec<(&'a str, &'a Node)>,
    /// Fields that are there under another name, and reported for that.
    meant: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    /// The fields of `node`, which is `what` and may have the fields `known`. `advise` says more of
    /// a field that it may not have.
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
                problems.push(Problem::new(key.at, format!("a field's name is {}: write text", key.kind())));
                continue;
            };
            if text == "<<" {
                problems.push(Problem::new(key.at, "merge keys are not supported: write the fields out"));
                meant.extend_from_slice(known);
            } else if !known.contains(&text.as_str()) {
                // The others are counted, and not shown: advice for each of thousands would take a second.
                let advised =
                    if problems.len() < RulesError::MOST { closest(text, known.iter().copied()) } else { None };
                meant.extend(advised);
                problems.push(Problem::new(key.at, unknown(text, known, advise(text), advised)));
            } else if fields.iter().any(|(name, _)| name == text) {
                problems.push(Problem::new(key.at, format!("`{text}` is here twice: keep one")));
            } else {
                fields.push((text, value));
            }
        }
        Some(Self { at: node.at, fields, meant })
    }

    /// The field called `name`, unless there is nothing in it.
    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        self.written(name).filter(|node| !node.is_null())
    }

    /// Whether there is no field called `name`, nor one that was meant to be.
    pub(super) fn lacks(&self, name: &str) -> bool {
        self.get(name).is_none() && !self.meant.contains(&name)
    }

    /// The field called `name`, even with nothing in it.
    pub(super) fn written(&self, name: &str) -> Option<&'a Node> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, node)| *node)
    }

    pub(super) fn text(&self, name: &str, problems: &mut Vec<Problem>) -> Option<(&'a str, Position)> {
        let node = self.get(name)?;
        Some((noted(text(node, name), problems)?, node.at))
    }

    /// The text of a field that has to be there, and not empty.
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

    /// Whether the field is there and true.
    pub(super) fn flag(&self, name: &str, problems: &mut Vec<Problem>) -> bool {
        self.get(name).and_then(|node| noted(boolean(node, name), problems)).unwrap_or(false)
    }

    pub(super) fn list(&self, name: &str, problems: &mut Vec<Problem>) -> &'a [Rc<Node>] {
        match self.get(name) {
            None => &[],
            Some(Node { value: Value::List(items), .. }) => items,
            Some(node) => {
                let message = format!("`{name}` is {}: write a list, each item behind a dash", node.kind());
                problems.push(Problem::new(node.at, message));
                &[]
            }
        }
    }

    /// One of `choices`, by its name.
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
        // YAML's older version, in which such files were written, has them count in eights.
        Ok(_) if is_digits && text.len() > 1 && text.starts_with('0') => {
            Err(wrong("write the number without leading zeros".into()))
        }
        Ok(number) if is_digits => Ok(number),
        Err(_) if is_digits => Err(wrong(format!("use at most {most}"))),
        _ if has_stray_underscores => Err(wrong("write an underscore only between two digits, as in `1_000`".into())),
        _ => Err(wrong(format!("write a whole number, from 0 to {most}"))),
    }
}

/// With the words of YAML's older version, in which files for Envoy's service are written.
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

/// The name that was probably meant.
pub(super) fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody mistypes that much, and the distance takes time.
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

/// `a, b or c`.
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
