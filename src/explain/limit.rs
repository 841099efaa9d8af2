//! The explanation of one limit: whether it applies to a request, and why.

use std::sync::Arc;

use super::applied::{AppliedLimit, ExpectedOutcome};
use crate::key::{KeyError, KeyPart};
use crate::limit::Limit;
use crate::when::Description;

/// The explanation of one limit: whether and how it applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitExplanation {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The path of its descriptor, if the limit comes from a rules file. See [`Limit::rule_path`].
    pub rule: Option<Arc<str>>,
    /// The condition, if the limit has one, as in `method is POST`. See
    /// [`Condition::describe`](crate::when::Condition::describe).
    pub condition: Option<String>,
    /// Whether the limit applies.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub status: LimitStatus,
}

/// Whether a limit applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case", tag = "status"))]
#[non_exhaustive]
pub enum LimitStatus {
    /// The limit applies.
    Applies(AppliedLimit),
    /// The limit does not apply: its condition does not hold.
    ConditionNotMet,
    /// The limit does not apply: the request does not match its descriptor in the rules file.
    NotMatched,
    /// The limit does not apply: another limit of the rules file replaces it.
    Replaced,
    /// The limit does not apply: the request has no key for it. See [`OnMissingKey::Skip`](crate::OnMissingKey::Skip).
    #[non_exhaustive]
    Skipped {
        /// The reason why the key is missing.
        error: KeyError,
        /// The parts of the key.
        key: Vec<KeyPart>,
    },
    /// The request is rejected, because it has no key for this limit. See
    /// [`OnMissingKey::Reject`](crate::OnMissingKey::Reject).
    #[non_exhaustive]
    Rejects {
        /// The reason why the key is missing.
        error: KeyError,
        /// The parts of the key.
        key: Vec<KeyPart>,
    },
    /// The limit is not evaluated, because the request is rejected earlier.
    NotReached,
}

impl LimitExplanation {
    pub(crate) fn new(limit: &Limit, status: LimitStatus) -> Self {
        Self {
            name: limit.shared_name().clone(),
            rule: limit.shared_rule_path().cloned(),
            condition: limit.condition().map(|condition| Description(condition).to_string()),
            status,
        }
    }

    /// Returns how the limit applies, if it does.
    #[must_use]
    pub fn applied(&self) -> Option<&AppliedLimit> {
        match &self.status {
            LimitStatus::Applies(applied) => Some(applied),
            _ => None,
        }
    }

    /// Returns the parts of the request's key, which are empty if the limit does not apply.
    #[must_use]
    pub fn key(&self) -> &[KeyPart] {
        match &self.status {
            LimitStatus::Applies(AppliedLimit { key, .. })
            | LimitStatus::Skipped { key, .. }
            | LimitStatus::Rejects { key, .. } => key,
            LimitStatus::ConditionNotMet
            | LimitStatus::NotMatched
            | LimitStatus::Replaced
            | LimitStatus::NotReached => &[],
        }
    }

    /// Returns whether the limit denies the request, or rejects it for lack of a key.
    #[must_use]
    pub fn denies(&self) -> bool {
        match &self.status {
            LimitStatus::Applies(applied) => applied.outcome.as_ref().is_some_and(ExpectedOutcome::denies),
            status => matches!(status, LimitStatus::Rejects { .. }),
        }
    }

    pub(super) fn key_mut(&mut self) -> &mut [KeyPart] {
        match &mut self.status {
            LimitStatus::Applies(AppliedLimit { key, .. })
            | LimitStatus::Skipped { key, .. }
            | LimitStatus::Rejects { key, .. } => key,
            LimitStatus::ConditionNotMet
            | LimitStatus::NotMatched
            | LimitStatus::Replaced
            | LimitStatus::NotReached => &mut [],
        }
    }
}
