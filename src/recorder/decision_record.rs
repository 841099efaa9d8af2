//! A decision, as recorders see it.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Decision, Outcome};

/// A decision about a request, for a [`Recorder`](crate::Recorder).
#[derive(Clone, Copy, Debug)]
pub struct DecisionRecord<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// The time that the decision took, including the wait for the store.
    pub duration: Duration,
    /// The names of the limits, by position.
    pub(crate) names: &'a [Arc<str>],
    pub(crate) near_percent: u32,
}

impl<'a> DecisionRecord<'a> {
    /// Returns the limits that applied to the request, with their outcomes.
    ///
    /// Empty if the fallback policy [allows](crate::OnStoreError::Allow) requests without counting them.
    pub fn limits(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        LimitRecord::of_decision(self.decision, self.names, self.near_percent)
    }
}

/// The record of one limit in a decision, for a [`Recorder`](crate::Recorder).
#[derive(Clone, Copy, Debug)]
pub struct LimitRecord<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The outcome: its verdict, the cost of the request, and the fingerprint of its key. The verdict allows the request
    /// if the limit has capacity, even if another limit denies it.
    pub outcome: &'a Outcome,
    /// The detail of the request in metrics, as [`Limit::metric_detail`](crate::Limit::metric_detail) computed it.
    /// Clients may choose it, so bound the number and the length of the details that you keep.
    pub detail: Option<&'a str>,
    is_charged: bool,
    near_percent: u32,
}

impl<'a> LimitRecord<'a> {
    /// Returns the records of the limits of a decision.
    pub(super) fn of_decision(
        decision: &'a Decision,
        names: &'a [Arc<str>],
        near_percent: u32,
    ) -> impl Iterator<Item = Self> {
        let is_charged = decision.is_charged();
        decision.outcomes().iter().filter_map(move |outcome| {
            let limit = outcome.limit();
            let detail = decision.charges().detail(limit);
            Some(Self { name: names.get(limit)?, outcome, detail, is_charged, near_percent })
        })
    }

    /// Returns the tokens that the request was charged: its cost, or 0 if it was not charged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        if self.is_charged && self.outcome.is_allowed() { self.outcome.cost() } else { 0 }
    }

    /// Returns whether the request was allowed, and its key has now used the share of the limit that
    /// [`Builder::near_limit`](crate::Builder::near_limit) sets.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        let capacity = self.outcome.algorithm().capacity();
        let used = capacity.saturating_sub(self.outcome.remaining());
        self.is_charged && self.outcome.is_allowed() && used * 100 >= capacity * u64::from(self.near_percent)
    }
}
