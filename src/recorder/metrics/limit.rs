//! The metrics of one limit.

use std::sync::OnceLock;

use metrics::{Counter, Label, counter};

use super::family::with_labels;
use crate::recorder::per_label::PerLabel;
use crate::recorder::{DecisionSource, LimitOutcome, LimitRecord};

/// The numbers of variants, whose last ones are named here.
pub(super) const SOURCES: usize = DecisionSource::Fallback as usize + 1;
const OUTCOMES: usize = LimitOutcome::Denied as usize + 1;

/// The handles of a limit's metrics. A counter is registered when it is first needed, so that no series is exported that
/// can't occur.
#[derive(Debug)]
pub(super) struct LimitHandles {
    labels: Vec<Label>,
    /// The handles of each [detail](crate::Limit::metric_detail).
    details: PerLabel<LimitHandles>,
    decisions: [[OnceLock<Counter>; SOURCES]; OUTCOMES],
    tokens: OnceLock<Counter>,
    near_limit: OnceLock<Counter>,
    penalties: OnceLock<Counter>,
}

impl LimitHandles {
    pub(super) fn new(labels: Vec<Label>) -> Self {
        Self {
            details: PerLabel::new(),
            decisions: Default::default(),
            tokens: OnceLock::new(),
            near_limit: OnceLock::new(),
            penalties: OnceLock::new(),
            labels,
        }
    }

    /// Counts a decision of the limit under its detail, if it has one.
    pub(super) fn count(&self, limit: &LimitRecord<'_>, source: DecisionSource) {
        let Some(detail) = limit.detail() else { return self.count_here(limit, source) };
        let create = |detail: &str| Self::new(with_labels(&self.labels, [("detail", detail)]));
        self.details.get(detail, create).count_here(limit, source);
    }

    fn count_here(&self, limit: &LimitRecord<'_>, source: DecisionSource) {
        let outcome = limit.outcome();
        let labels = || with_labels(&self.labels, [("outcome", outcome.as_str()), ("decided_by", source.as_str())]);
        let decisions = &self.decisions[outcome as usize][source as usize];
        decisions.get_or_init(|| counter!("ratelimit_decisions_total", labels())).increment(1);
        let tokens = || counter!("ratelimit_tokens_total", self.labels.clone());
        self.tokens.get_or_init(tokens).increment(limit.charged());
        let near_limit = || counter!("ratelimit_near_limit_total", self.labels.clone());
        self.near_limit.get_or_init(near_limit).increment(limit.is_near_limit().into());
    }

    /// Counts a lockout that begins.
    pub(super) fn count_penalty(&self) {
        self.penalties.get_or_init(|| counter!("ratelimit_penalties_total", self.labels.clone())).increment(1);
    }
}
