//! Explanations as text, for a terminal.

use std::fmt;

use super::{Conclusion, Decider, ExpectedOutcome, Explanation, LimitExplanation, LimitStatus, ListKind};
use crate::key::{KeyError, KeyPart};

/// The most limits of a rules file that are listed although the request does not match them.
const MAX_UNMATCHED: usize = 10;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.conclusion, self.decided_by)?;
        for list in &self.lists {
            let what = match list.kind {
                ListKind::Rejects(_) => "always_reject",
                ListKind::Exempts => "never_limit",
            };
            let verb = if list.matches { "matches" } else { "does not match" };
            write!(f, "\n  {what} {verb}: requires {}", list.condition)?;
        }
        let mut unmatched = 0;
        for limit in &self.limits {
            unmatched += usize::from(limit.status == LimitStatus::NotMatched);
            if limit.status != LimitStatus::NotMatched || unmatched <= MAX_UNMATCHED {
                write!(f, "\n  {limit}")?;
            }
        }
        if unmatched > MAX_UNMATCHED {
            write!(f, "\n  {} more limits do not match the request", unmatched - MAX_UNMATCHED)?;
        }
        Ok(())
    }
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed { delay } if delay.is_zero() => f.write_str("allowed"),
            Self::Allowed { delay } => write!(f, "allowed after a delay of {delay:?}"),
            Self::Denied { retry_after: Some(wait) } => write!(f, "denied, retry after {wait:?}"),
            Self::Denied { retry_after: None } => f.write_str("denied: the cost exceeds the capacity"),
            Self::Exempt => f.write_str("exempt by never_limit"),
            Self::Listed { .. } => f.write_str("rejected by always_reject"),
            Self::MissingKey { error } => write!(f, "rejected: {}", reason(*error)),
            Self::StoreFailed => f.write_str("rejected: the store fails"),
        }
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(rule) = &self.rule {
            write!(f, " ({rule})")?;
        }
        match &self.status {
            LimitStatus::ConditionNotMet => {
                write!(f, ": does not apply: requires {}", self.condition.as_deref().unwrap_or("its condition"))
            }
            LimitStatus::NotMatched => f.write_str(": does not match the request"),
            LimitStatus::Replaced => f.write_str(": does not apply: replaced by another limit"),
            LimitStatus::NotReached => f.write_str(": not reached"),
            LimitStatus::Skipped { error } => {
                write!(f, ": does not apply: {}{}", reason(*error), KeyParts(&self.key))
            }
            LimitStatus::Rejects { error } => {
                write!(f, ": rejects the request: {}{}", reason(*error), KeyParts(&self.key))
            }
            LimitStatus::Applies(applied) => {
                match &applied.outcome {
                    None => write!(f, ": not decided, cost {}", applied.cost)?,
                    Some(outcome) => {
                        write_verdict(outcome, f)?;
                        write!(f, ", {} of {} left, cost {}", outcome.remaining, applied.capacity, applied.cost)?;
                        if !outcome.reset_after.is_zero() {
                            write!(f, ", reset after {:?}", outcome.reset_after)?;
                        }
                    }
                }
                if let Some(error) = applied.missing_key {
                    write!(f, ", in the bucket of requests without a key: {}", reason(error))?;
                }
                write!(f, "{}, fingerprint {}", KeyParts(&self.key), applied.fingerprint)
            }
        }
    }
}

impl fmt::Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { name: Some(name) } => write!(f, "decided by the store ({name})"),
            Self::Store { name: None } => f.write_str("decided by the store"),
            Self::RememberedDenial => f.write_str("decided by a remembered denial"),
            Self::LocalShare { error } => write!(f, "decided by the local share of the limits: {error}"),
            Self::AllowPolicy { error } => write!(f, "not counted: {error}"),
            Self::RejectPolicy { error } => write!(f, "not decided: {error}"),
            Self::Head => f.write_str("without a decision of the limits"),
            Self::Nobody => f.write_str("no limit applies"),
        }
    }
}

/// Writes the verdict of a limit.
fn write_verdict(outcome: &ExpectedOutcome, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(match (outcome.allowed, outcome.enforced) {
        (true, _) => ": allowed",
        (false, true) => ": denied",
        (false, false) => ": would deny, but is not enforced",
    })?;
    if outcome.uses_overage {
        f.write_str(" within the overage")?;
    }
    if !outcome.delay.is_zero() {
        write!(f, " after a delay of {:?}", outcome.delay)?;
    }
    if let Some(wait) = outcome.retry_after {
        write!(f, ", retry after {wait:?}")?;
    }
    if outcome.locked_out { f.write_str(", locked out by a penalty") } else { Ok(()) }
}

/// A key as the end of a line.
pub(crate) struct KeyParts<'a>(pub(crate) &'a [KeyPart]);

impl fmt::Display for KeyParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            write!(f, "{}{part}", if index == 0 { ", by " } else { " and " })?;
        }
        Ok(())
    }
}

/// Returns why a key is missing, in words.
fn reason(error: KeyError) -> &'static str {
    match error {
        KeyError::NotSent => "the client did not send the key",
        KeyError::NotProvided => "the server does not provide the key",
        KeyError::MissingExtension(_) => "the request lacks the extension of the key",
        KeyError::Ambiguous => "the client sent several keys",
    }
}
