//! Asking a store that may not answer: whether to, for how long, and what its answer says of it.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::breaker::{Attempt, Pass};
use super::guard::Guard;
use crate::error::StoreError;
use crate::observe::{BreakerState, Event};
use crate::store::Charge;

impl Guard {
    /// Whether the store may be asked, for a request with these charges: while the breaker is open, they
    /// are what it is probed with.
    pub(crate) fn admit(self: &Arc<Self>, charges: &[Charge<'_>]) -> Result<Attempt, StoreError> {
        match self.breaker.pass(!charges.is_empty(), self.deadline) {
            Pass::Ask(attempt) => return Ok(attempt),
            Pass::Probe(attempt) => match Handle::try_current() {
                Ok(runtime) => self.probe(&runtime, attempt, charges),
                // Nobody else will: the request finds out itself.
                Err(_) => return Ok(attempt.into_trial()),
            },
            Pass::No => {}
        }
        let error = StoreError::breaker_open();
        self.tell_failure(&error);
        Err(error)
    }

    /// Asks the store in the background what it would decide. Nobody waits for the answer.
    fn probe(self: &Arc<Self>, runtime: &Handle, attempt: Attempt, charges: &[Charge<'_>]) {
        let answer = self.store.peek(charges);
        if answer.is_remembered() {
            return attempt.withdraw();
        }
        match answer.into_pending() {
            Ok(answer) => self.tell_change(attempt.end(works(&answer))),
            Err(pending) => {
                let guard = self.clone();
                runtime.spawn(async move {
                    let answer = timeout(guard.deadline, pending).await;
                    guard.tell_change(attempt.end(answer.is_ok_and(|answer| works(&answer))));
                });
            }
        }
    }

    /// Waits for what the store is asked, until the deadline.
    pub(crate) async fn watch<T>(
        &self,
        attempt: Attempt,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = timeout(self.deadline, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::timed_out(self.deadline)));
        self.judge(attempt.end(works(&answer)), answer)
    }

    /// What an answer that was there at once says of the store.
    pub(super) fn judge_at_once<T>(&self, attempt: Attempt, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.judge(attempt.end_at_once(works(&answer)), answer)
    }

    fn judge<T>(&self, changed: Option<BreakerState>, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &answer {
            self.tell_failure(error);
        }
        self.tell_change(changed);
        answer
    }

    fn tell_failure(&self, error: &StoreError) {
        self.observer.tell(&Event::StoreFailed { error });
        #[cfg(feature = "tracing")]
        self.reports.failed(error);
    }

    fn tell_change(&self, changed: Option<BreakerState>) {
        let Some(state) = changed else { return };
        self.observer.tell(&Event::BreakerChanged { state });
        #[cfg(feature = "tracing")]
        self.reports.changed(state);
    }
}

/// Whether an answer says that the store works: one request that it can't decide is no failure of it.
fn works<T>(answer: &Result<T, StoreError>) -> bool {
    answer.as_ref().err().is_none_or(StoreError::is_of_one_request)
}
