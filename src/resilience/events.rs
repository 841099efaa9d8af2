//! Reports decisions, store failures and breaker changes to the recorders and the log.

use std::time::Instant;

use super::breakers::Changes;
use super::client::StoreClient;
#[cfg(feature = "tracing")]
use super::outage_log::LogContext;
use crate::decision::{Decision, Outcome};
use crate::error::StoreError;
use crate::limit::Limit;
use crate::reason::Reason;
use crate::recorder::{DecisionRecord, DecisionSource, Event, RejectionRecord};
use crate::request::RequestHead;
use crate::store::{Charge, StoreFuture};

/// The recording of a decision that is being made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    began: Instant,
}

impl StoreClient {
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        self.recorders.event(event);
    }

    #[inline]
    pub(super) fn has_recorders(&self) -> bool {
        !self.recorders.is_empty()
    }

    /// Starts the recording of a decision, if there are recorders.
    pub(crate) fn start_recording(&self) -> Option<Recording> {
        self.has_recorders().then(|| Recording { began: Instant::now() })
    }

    /// Records an answer that was ready at once, if it is a decision.
    pub(super) fn record_ready(
        &self,
        recording: Option<Recording>,
        answer: &StoreFuture<Decision>,
        charges: &[Charge<'_>],
    ) {
        if let (Some(recording), Some(decision)) = (recording, answer.settled()) {
            self.record(recording, DecisionSource::of(decision, answer.is_remembered(), true), decision, charges);
        }
    }

    /// Records a decision that was waited for.
    pub(crate) fn record_waited(&self, recording: Option<Recording>, decision: &Decision, charges: &[Charge<'_>]) {
        if let Some(recording) = recording {
            self.record(recording, DecisionSource::of(decision, false, false), decision, charges);
        }
    }

    /// Records a decision, and reports overage, new penalties and denials in shadow mode.
    #[cold]
    fn record(&self, recording: Recording, source: DecisionSource, decision: &Decision, charges: &[Charge<'_>]) {
        let record = DecisionRecord {
            decision,
            charges,
            source,
            duration: recording.began.elapsed(),
            near_percent: self.near_percent,
            store: &*self.store,
        };
        self.recorders.decision(&record);
        for outcome in decision.outcomes() {
            if let Some(limit) = self.limits.as_slice().get(outcome.limit()) {
                self.report_outcome(limit, outcome, decision.is_charged());
            }
        }
    }

    fn report_outcome(&self, limit: &Limit, outcome: &Outcome, is_charged: bool) {
        let (limit, is_shadow) = (limit.name(), limit.is_shadow());
        if is_charged && outcome.uses_overage() {
            self.report_event(&Event::OverageUsed { limit, outcome });
        }
        if let Some(begun) = outcome.lockout() {
            let (level, span) = (begun.level as u32, begun.duration());
            self.report_event(&Event::PenaltyBegan { limit, level, span });
        }
        if is_shadow && !outcome.is_allowed() {
            self.report_event(&Event::ShadowDenied { limit, outcome });
        }
    }

    /// Records that a layer rejects a request. `denied` is the decision, if a limit denied it.
    pub(crate) fn record_rejection(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) {
        if self.has_recorders() {
            let (specs, near_percent) = (self.limits.all_specs(), self.near_percent);
            let record = RejectionRecord { reason, decision: denied, specs, near_percent, head: *head };
            self.recorders.rejection(&record);
        }
    }

    pub(super) fn report_failure(&self, error: &StoreError) {
        self.report_event(&Event::StoreFailed { error });
        self.log_failure(error);
    }

    pub(super) fn report_changes(&self, changes: Changes) {
        for (node, state) in changes {
            self.report_event(&Event::BreakerChanged { state, node: node.as_ref() });
            #[cfg(feature = "tracing")]
            self.outage_log.breaker_changed(node.as_ref(), state, &self.log_context());
        }
    }

    /// Logs a failure that no request waited for.
    pub(super) fn log_failure(&self, error: &StoreError) {
        #[cfg(feature = "tracing")]
        self.outage_log.failed(error, &self.log_context());
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }

    #[cfg(feature = "tracing")]
    fn log_context(&self) -> LogContext<'_> {
        LogContext { store: &*self.store, policies: &self.local.policies }
    }
}
