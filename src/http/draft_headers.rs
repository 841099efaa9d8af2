//! The headers of the IETF drafts: `RateLimit-Policy` and `RateLimit`.

use http::{HeaderMap, HeaderValue};

use super::effective_window::Replenishment;
use super::header_map::append;
use super::header_style::HeaderStyle;
use super::headers::{Headers, reported};
use super::limit_text::integer;
use super::merge::{RATE_LIMIT, RATE_LIMIT_POLICY, merge};
use super::text::{Number, Text, joined};
use crate::decision::{Decision, Outcome};
use crate::limit_spec;
use crate::time::ceil_seconds;

/// The headers for one decision.
#[derive(Debug)]
pub(super) struct DraftHeaders {
    policies: HeaderValue,
    quotas: HeaderValue,
}

impl Headers {
    /// Returns the headers for a decision in the most frequent case: one enforced limit in its usual size, and a draft
    /// as the only style.
    #[inline]
    pub(super) fn common_draft(&self, decision: &Decision) -> Option<DraftHeaders> {
        let ([style @ (HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11)], Some(policies), [outcome]) =
            (&*self.styles, &self.policies, decision.outcomes())
        else {
            return None;
        };
        let has_common_policy = self.enforced == 1 && decision.resized().is_empty();
        if !has_common_policy || !outcome.is_enforced() {
            return None;
        }
        Some(DraftHeaders { policies: policies.clone(), quotas: self.quota(*style, decision, outcome) })
    }

    /// Returns the headers for a decision of which `count` limits are reported.
    pub(super) fn draft(&self, style: HeaderStyle, decision: &Decision, count: usize) -> DraftHeaders {
        DraftHeaders { policies: self.policies(decision, count), quotas: self.quotas(style, decision) }
    }

    /// Returns the policies of the `count` limits that are reported.
    fn policies(&self, decision: &Decision, count: usize) -> HeaderValue {
        if let Some(policies) = &self.policies
            && count == self.enforced
            && decision.resized().is_empty()
        {
            return policies.clone();
        }
        let mut text = Text::new();
        for outcome in reported(decision) {
            let texts = self.limit_text(decision, outcome);
            if !text.is_empty() {
                text.push(b", ");
            }
            text.push(&texts.policy);
            if let Some(calendar) = texts.replenishment.calendar() {
                text.push(b";w=");
                let window = ceil_seconds(calendar.window_at(decision.at()));
                text.push_number(integer(window));
            }
        }
        text.value()
    }

    fn quotas(&self, style: HeaderStyle, decision: &Decision) -> HeaderValue {
        if let [outcome] = decision.outcomes() {
            return self.quota(style, decision, outcome);
        }
        let mut text = Text::new();
        for outcome in reported(decision) {
            if !text.is_empty() {
                text.push(b", ");
            }
            text.push(&self.limits[outcome.limit()].remaining);
            text.push_number(outcome.remaining());
            if let Some(seconds) = self.time_parameter(style, decision, outcome) {
                text.push(b";t=");
                text.push_number(integer(seconds));
            }
        }
        text.value()
    }

    /// Returns the item of a single limit, in one allocation.
    #[inline]
    fn quota(&self, style: HeaderStyle, decision: &Decision, outcome: &Outcome) -> HeaderValue {
        let prefix = &*self.limits[outcome.limit()].remaining;
        let (mut remaining, mut time) = (Number::new(), Number::new());
        let remaining = remaining.format(outcome.remaining()).as_bytes();
        match self.time_parameter(style, decision, outcome) {
            None => joined([prefix, remaining]),
            Some(seconds) => joined([prefix, remaining, b";t=", time.format(integer(seconds)).as_bytes()]),
        }
    }

    /// Returns the value of the parameter `t`, whose meaning depends on the draft.
    #[inline]
    fn time_parameter(&self, style: HeaderStyle, decision: &Decision, outcome: &Outcome) -> Option<u64> {
        if style == HeaderStyle::IetfDraft10 {
            return outcome.more_after().map(ceil_seconds);
        }
        Some(match limit_spec::find(outcome.limit(), decision.resized()) {
            Some(spec) => Replenishment::of(spec.algorithm()).effective_window(outcome, decision.at()),
            None => self.limits[outcome.limit()].replenishment.effective_window(outcome, decision.at()),
        })
    }
}

impl DraftHeaders {
    pub(super) fn write(self, headers: &mut HeaderMap) {
        append(headers, RATE_LIMIT_POLICY, self.policies);
        if append(headers, RATE_LIMIT, self.quotas) {
            merge(headers);
        }
    }
}
