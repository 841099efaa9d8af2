//! Counts explained requests in a report.

use super::report::{LimitReport, MAX_SAMPLES, Report, SampleLimit, SampleRequest};
use crate::explain::{Conclusion, Decider, Explanation, LimitExplanation, LimitStatus};
use crate::key::heads::RequestHead;
use crate::time::Timestamp;

impl Report {
    /// Counts a request and its decision.
    pub(super) fn count(&mut self, at: Timestamp, head: &RequestHead<'_>, explanation: &Explanation) {
        self.requests += 1;
        match explanation.conclusion {
            Conclusion::Allowed { .. } | Conclusion::Exempt => self.allowed += 1,
            Conclusion::Denied { .. } => self.denied += 1,
            Conclusion::Listed { .. } | Conclusion::MissingKey { .. } | Conclusion::StoreFailed => self.rejected += 1,
        }
        let is_unlimited = explanation.decided_by == Decider::Nobody || explanation.conclusion == Conclusion::Exempt;
        self.unlimited += u64::from(is_unlimited);
        for (index, limit) in explanation.limits.iter().enumerate() {
            self.limit(index, limit).count(at, head, limit);
        }
    }

    /// Returns the report of a limit, which is at `index` unless live limits have been replaced.
    fn limit(&mut self, index: usize, limit: &LimitExplanation) -> &mut LimitReport {
        let is_same = |report: &LimitReport| report.name == limit.name;
        let known = match self.limits.get(index).filter(|report| is_same(report)) {
            Some(_) => Some(index),
            None => self.limits.iter().position(is_same),
        };
        let position = known.unwrap_or_else(|| {
            self.limits.push(LimitReport::new(&limit.name, limit.rule.as_ref()));
            self.limits.len() - 1
        });
        &mut self.limits[position]
    }
}

impl LimitReport {
    fn count(&mut self, at: Timestamp, head: &RequestHead<'_>, limit: &LimitExplanation) {
        let outcome = match &limit.status {
            LimitStatus::Applies(applied) => applied.outcome.as_ref(),
            LimitStatus::Rejects { .. } => {
                self.missing_key += 1;
                None
            }
            _ => None,
        };
        let Some(outcome) = outcome else { return };
        self.requests += 1;
        self.allowed += u64::from(outcome.allowed);
        self.denied += u64::from(outcome.denies());
        self.shadow_denied += u64::from(!outcome.allowed && !outcome.enforced);
        if !outcome.allowed && self.samples.len() < MAX_SAMPLES {
            self.samples.push(SampleRequest::new(at, head, outcome.retry_after, vec![SampleLimit::from(limit)]));
        }
    }
}

impl From<&LimitExplanation> for SampleLimit {
    fn from(limit: &LimitExplanation) -> Self {
        Self { name: limit.name.clone(), key: limit.key().to_vec() }
    }
}
