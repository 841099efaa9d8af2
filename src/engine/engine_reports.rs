//! Reports of an engine to its recorders and to the log.

use std::time::{Duration, Instant};

use super::Engine;
use super::breaker::BreakerChanges;
use crate::algorithm::Lockout;
use crate::decision::{Decision, Purpose};
use crate::error::StoreError;
use crate::key::head::RequestHead;
use crate::recorder::{DecisionRecord, Event, Reason, Rejection, report};

impl Engine {
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        report(&self.recorders, event);
    }

    /// Returns the instant at which a decision begins, if it takes something and there are recorders.
    #[inline]
    pub(crate) fn start_recording(&self, purpose: Purpose) -> Option<Instant> {
        let is_recorded = purpose == Purpose::Take && !self.recorders.is_empty();
        is_recorded.then(Instant::now)
    }

    /// Records a decision that has begun at an instant, if it is to be recorded.
    #[inline]
    pub(crate) fn record(&self, began: Option<Instant>, decision: &Decision) {
        if let Some(began) = began {
            self.record_since(began, decision);
        }
    }

    #[cold]
    fn record_since(&self, began: Instant, decision: &Decision) {
        let record = DecisionRecord {
            decision,
            names: &self.limits.names,
            duration: began.elapsed(),
            near_percent: self.near_percent,
        };
        self.recorders.iter().for_each(|recorder| recorder.decision(&record));
        for outcome in decision.outcomes() {
            if let Some(limit) = self.limits.get(outcome.limit()) {
                let (limit, is_shadow) = (limit.name(), limit.is_shadow());
                if decision.is_charged() && outcome.uses_overage() {
                    self.report_event(&Event::OverageUsed { limit, outcome });
                }
                if let Some(Lockout { level, span }) = outcome.lockout() {
                    self.report_event(&Event::PenaltyBegan { limit, level, span });
                }
                if is_shadow && !outcome.is_allowed() {
                    self.report_event(&Event::ShadowDenied { limit, outcome });
                }
            }
        }
    }

    /// Records that a layer rejects a request. `decision` is the one that denied it, if a limit did. `wait` is what the
    /// client is told.
    pub(crate) fn reject<'a>(
        &'a self,
        reason: Reason,
        decision: Option<&'a Decision>,
        wait: Option<Duration>,
        head: &RequestHead<'a>,
    ) -> Rejection<'a> {
        let rejection = Rejection { reason, decision, names: &self.limits.names, wait, head: *head };
        self.recorders.iter().for_each(|recorder| recorder.rejection(&rejection));
        rejection
    }

    pub(super) fn report_failure(&self, error: &StoreError) {
        self.report_event(&Event::StoreFailed { error });
        #[cfg(feature = "tracing")]
        self.outage_log.failed(error, &*self.guard.store, || self.fallback.describe(&self.limits));
    }

    pub(super) fn report_changes(&self, changes: BreakerChanges) {
        for (node, state) in changes {
            self.report_event(&Event::BreakerChanged { state, node: node.as_ref() });
            #[cfg(feature = "tracing")]
            let describe = || self.fallback.describe(&self.limits);
            #[cfg(feature = "tracing")]
            self.outage_log.breaker_changed(&self.guard.breakers, node.as_ref(), state, &*self.guard.store, describe);
        }
    }
}
