//! The `penalty` of a limit.

use std::time::Duration;

use super::fields::Fields;
use super::period;
use super::problem::{Position, Problem};
use crate::algorithm::Penalty;
use crate::error::ConfigError;

const FIELDS: &[&str] = &["denials", "within", "locked_out_for", "up_to", "remembered_for"];

/// Reads the penalty of a limit, if it has one.
pub(super) fn read(limit: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<Penalty> {
    let fields = Fields::of(limit.get("penalty")?, "`penalty`", FIELDS, advise, problems)?;
    let before = problems.len();
    let denials = fields.integer("denials", problems);
    let [within, locked_out_for, up_to, remembered_for] =
        ["within", "locked_out_for", "up_to", "remembered_for"].map(|name| span(&fields, name, problems));
    for (name, example) in [("denials", "5"), ("within", "1m")] {
        if fields.lacks(name) {
            let message = format!("`{name}` is missing: write `{name}: {example}`, for example");
            problems.push(Problem::new(fields.at, message));
        }
    }
    if problems.len() > before {
        return None;
    }
    let ((denials, denials_at), (within, within_at)) = (denials?, within?);
    let at = if Penalty::try_after(denials, Duration::from_secs(1)).is_err() { denials_at } else { within_at };
    let mut penalty = noted(Penalty::try_after(denials, within), at, problems)?;
    if let Some((span, at)) = locked_out_for {
        penalty = noted(penalty.try_locked_out_for(span), at, problems)?;
    }
    if let Some((span, at)) = up_to {
        penalty = noted(penalty.try_doubling_up_to(span), at, problems)?;
    }
    if let Some((span, at)) = remembered_for {
        penalty = noted(penalty.try_remembered_for(span), at, problems)?;
    }
    Some(penalty)
}

fn advise(name: &str) -> Option<String> {
    let advice = match name {
        "after" | "strikes" | "count" => "did you mean `denials`?",
        "period" | "unit" | "span" => "did you mean `within`?",
        "ban" | "for" | "block" | "block_for" | "duration" => "did you mean `locked_out_for`?",
        "max" | "longest" | "doubling_up_to" => "did you mean `up_to`?",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn span(fields: &Fields<'_>, name: &str, problems: &mut Vec<Problem>) -> Option<(Duration, Position)> {
    let (text, at) = fields.text(name, problems)?;
    let span = period::parse(name, text).map_err(|message| problems.push(Problem::new(at, message))).ok()?;
    if span.is_zero() {
        problems.push(Problem::new(at, format!("`{name}` is {text:?}: use at least 1us")));
        return None;
    }
    Some((span, at))
}

fn noted(penalty: Result<Penalty, ConfigError>, at: Position, problems: &mut Vec<Problem>) -> Option<Penalty> {
    penalty.map_err(|error| problems.push(Problem::new(at, error.to_string()))).ok()
}
