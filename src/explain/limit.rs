//! The explanation of one limit: whether it applies to a request, and why; and its outcome.

use std::sync::Arc;
use std::time::Duration;

use crate::key::{KeyError, KeyPart};
use crate::limit::Limit;
use crate::select::Condition;
use crate::store::decision::Cell;
#[cfg(feature = "serde")]
use crate::time::Timestamp;

/// The explanation of one limit: whether and how it applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitExplanation {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The path of its descriptor, if the limit comes from a rules file: keys and values from the outermost descriptor
    /// inwards, as in `path=/login > remote_address`.
    pub rule: Option<Arc<str>>,
    /// The condition, if the limit has one, as in `method is POST`. See [`Condition::describe`].
    pub condition: Option<String>,
    /// The parts of the key, if the limit applies or the key is missing. Empty for a limit with one bucket for all
    /// requests.
    pub key: Vec<KeyPart>,
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
    },
    /// The request is rejected, because it has no key for this limit. See
    /// [`OnMissingKey::Reject`](crate::OnMissingKey::Reject).
    #[non_exhaustive]
    Rejects {
        /// The reason why the key is missing.
        error: KeyError,
    },
    /// The limit is not evaluated, because the request is rejected earlier.
    NotReached,
}

impl LimitStatus {
    /// Creates the status of a limit that applies. Its cost and its outcome are set later.
    #[inline]
    pub(crate) fn applies(missing_key: Option<KeyError>) -> Self {
        Self::Applies(AppliedLimit { missing_key, fingerprint: String::new(), cost: 0, capacity: 0, outcome: None })
    }

    /// Returns whether it is decided by the key of a request.
    pub(crate) fn depends_on_key(&self) -> bool {
        matches!(self, Self::Applies(_) | Self::Skipped { .. } | Self::Rejects { .. })
    }
}

impl LimitExplanation {
    /// Creates the explanation of a limit that has not been reached.
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            rule: limit.rule_path.clone(),
            condition: limit.condition.as_deref().map(Condition::describe),
            key: Vec::new(),
            status: LimitStatus::NotReached,
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

    /// Returns whether the limit denies the request, or rejects it for lack of a key.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.rejects() || self.outcome().is_some_and(ExpectedOutcome::denies)
    }

    pub(crate) fn rejects(&self) -> bool {
        matches!(self.status, LimitStatus::Rejects { .. })
    }

    pub(crate) fn outcome(&self) -> Option<&ExpectedOutcome> {
        self.applied()?.outcome.as_ref()
    }
}

/// The cost and the expected outcome of a limit that applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AppliedLimit {
    /// The reason for the missing key, if the request is charged to the bucket that requests without a key share. See
    /// [`OnMissingKey::Share`](crate::OnMissingKey::Share).
    pub missing_key: Option<KeyError>,
    /// The fingerprint of the key under this limit, as 32 hexadecimal digits: the same as in the log of `TraceRecorder`
    /// and in [`Stats`](crate::Stats).
    pub fingerprint: String,
    /// The cost of the request, in tokens.
    pub cost: u64,
    /// The capacity that applies to the request and its key, without overage.
    pub capacity: u64,
    /// The outcome. `None` if the limit does not decide, because the store fails.
    pub outcome: Option<ExpectedOutcome>,
}

/// The outcome that a limit would have for a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ExpectedOutcome {
    /// Whether the limit has capacity. See [`Cell::verdict`].
    pub allowed: bool,
    /// Whether the limit counts for the decision. See [`Cell::is_enforced`].
    pub enforced: bool,
    /// The delay of the request, if the limit is a queue. Otherwise zero.
    #[cfg_attr(feature = "serde", serde(rename = "delay_seconds", serialize_with = "serialize_span"))]
    pub delay: Duration,
    /// The wait after which the limit would have capacity. `None` if it has capacity, or if no wait can help.
    #[cfg_attr(feature = "serde", serde(rename = "retry_after_seconds", serialize_with = "serialize_span"))]
    pub retry_after: Option<Duration>,
    /// The tokens that would be left. See [`Cell::remaining`].
    pub remaining: u64,
    /// The wait after which more tokens would be left. See [`Cell::more_after`].
    #[cfg_attr(feature = "serde", serde(rename = "more_after_seconds", serialize_with = "serialize_span"))]
    pub more_after: Option<Duration>,
    /// The time until the key is as if it had never been used. See [`Cell::reset_after`].
    #[cfg_attr(feature = "serde", serde(rename = "reset_after_seconds", serialize_with = "serialize_span"))]
    pub reset_after: Duration,
    /// Whether there is capacity in the limit's overage only. See [`Cell::uses_overage`].
    pub uses_overage: bool,
    /// Whether a penalty locks the key out. See [`Cell::is_locked_out`].
    pub locked_out: bool,
}

impl From<&Cell> for ExpectedOutcome {
    fn from(outcome: &Cell) -> Self {
        let verdict = outcome.verdict();
        Self {
            allowed: verdict.is_allowed(),
            enforced: outcome.is_enforced(),
            delay: verdict.delay(),
            retry_after: verdict.retry_after(),
            remaining: outcome.remaining(),
            more_after: outcome.more_after(),
            reset_after: outcome.reset_after(),
            uses_overage: outcome.uses_overage(),
            locked_out: outcome.is_locked_out(),
        }
    }
}

impl ExpectedOutcome {
    /// Returns whether the limit denies the request.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.enforced && !self.allowed
    }
}

/// Serializes a duration or an `Option<Duration>` as a number of seconds.
#[cfg(feature = "serde")]
pub(crate) fn serialize_span<S: serde::Serializer>(
    span: &(impl Into<Option<Duration>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&(*span).into().map(|span| span.as_secs_f64()), serializer)
}

/// Serializes an instant or an `Option<Timestamp>` as the number of seconds since the Unix epoch.
#[cfg(feature = "serde")]
pub(crate) fn serialize_instant<S: serde::Serializer>(
    at: &(impl Into<Option<Timestamp>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&(*at).into().map(|at| at.as_micros() as f64 / 1e6), serializer)
}
