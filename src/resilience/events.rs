//! Reports decisions, store failures and breaker changes to the observer and the log.

use super::breakers::Changes;
use super::client::StoreClient;
#[cfg(feature = "tracing")]
use super::outage_log::LogContext;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::observe::Event;

impl StoreClient {
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        self.observer.notify(event);
    }

    /// Reports overage, new penalties and denials in shadow mode of a decision about charges that were to be acquired.
    #[inline]
    pub(crate) fn report_decision(&self, decision: &Decision) {
        if self.reports_decisions {
            self.report_outcomes(decision);
        }
    }

    #[cold]
    fn report_outcomes(&self, decision: &Decision) {
        let is_charged = decision.is_charged();
        for outcome in decision.outcomes() {
            let Some(limit) = self.limits.as_slice().get(outcome.limit()) else { continue };
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
