//! Reports decisions, store failures and breaker changes to the recorders and the log.

use std::time::Instant;

use super::breaker::Changes;
use super::client::StoreClient;
#[cfg(feature = "tracing")]
use super::outage_log::LogContext;
use crate::decision::{Cell, Decision};
use crate::error::StoreError;
use crate::key::heads::RequestHead;
use crate::limit::Limit;
use crate::reason::Reason;
use crate::recorder::{DecisionRecord, DecisionSource, Event, RejectionRecord};
use crate::store::Purpose;

/// The recording of a decision that is being made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    began: Instant,
}

impl StoreClient {
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        self.recorders.event(event);
    }

    /// Starts the recording of a decision that takes something, if there are recorders.
    #[inline]
    pub(crate) fn start_recording(&self, purpose: Purpose) -> Option<Recording> {
        let is_recorded = purpose == Purpose::Take && !self.recorders.is_empty();
        is_recorded.then(|| Recording { began: Instant::now() })
    }

    /// Records a decision, if there are recorders.
    #[inline]
    pub(crate) fn record(&self, recording: Option<Recording>, source: DecisionSource, decision: &Decision) {
        if let Some(Recording { began }) = recording {
            self.record_since(began, source, decision);
        }
    }

    #[cold]
    fn record_since(&self, began: Instant, source: DecisionSource, decision: &Decision) {
        let record = DecisionRecord {
            decision,
            names: self.limits.names(),
            source,
            duration: began.elapsed(),
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

    fn report_outcome(&self, limit: &Limit, outcome: &Cell, is_charged: bool) {
        let (limit, is_shadow) = (limit.name(), limit.is_shadow());
        if is_charged && outcome.uses_overage() {
            self.report_event(&Event::OverageUsed { limit, outcome });
        }
        if let Some(begun) = outcome.lockout() {
            let (level, span) = (begun.level.get() as u32, begun.duration());
            self.report_event(&Event::PenaltyBegan { limit, level, span });
        }
        if is_shadow && !outcome.is_allowed() {
            self.report_event(&Event::ShadowDenied { limit, outcome });
        }
    }

    /// Records that a layer rejects a request. `denied` is the decision, if a limit denied it.
    pub(crate) fn record_rejection(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) {
        if !self.recorders.is_empty() {
            let (names, near_percent) = (self.limits.names(), self.near_percent);
            let record = RejectionRecord { reason, decision: denied, names, near_percent, head: *head };
            self.recorders.rejection(&record);
        }
    }

    pub(super) fn report_failure(&self, error: &StoreError) {
        self.report_event(&Event::StoreFailed { error });
        #[cfg(feature = "tracing")]
        self.outage_log.failed(error, &self.log_context());
    }

    pub(super) fn report_changes(&self, changes: Changes) {
        for (node, state) in changes {
            self.report_event(&Event::BreakerChanged { state, node: node.as_ref() });
            #[cfg(feature = "tracing")]
            self.outage_log.breaker_changed(node.as_ref(), state, &self.log_context());
        }
    }

    #[cfg(feature = "tracing")]
    fn log_context(&self) -> LogContext<'_> {
        LogContext { store: &*self.store, policies: &self.local }
    }
}
