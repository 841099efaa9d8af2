//! Calls to the store: asks the breakers for admission, applies the deadline, and records the results per node.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::attempt::{Attempt, Keys, Probe, keys_of, nodes_of};
use super::breakers::{Admission, Changes, HealthChecks};
use super::client::StoreClient;
use crate::decision::{Cell, Cells};
use crate::error::StoreError;
use crate::store::{LONGEST_WAIT, Purpose, Store, StoreFuture};

impl StoreClient {
    /// Asks the breakers whether a request with these cells may call the store. If a breaker is open and its pause is
    /// over, starts a probe of its node with these cells.
    ///
    /// # Errors
    ///
    /// Returns an error if the breaker of a node is open.
    pub(crate) fn admit(self: &Arc<Self>, cells: &[Cell]) -> Result<Attempt, StoreError> {
        self.admit_keys(keys_of(cells), cells)
    }

    /// Like [`admit`](Self::admit), for a request that concerns `keys`. Without `cells`, no probe is started.
    pub(super) fn admit_keys(self: &Arc<Self>, keys: Keys, cells: &[Cell]) -> Result<Attempt, StoreError> {
        if self.breakers.are_closed() {
            return Ok(Attempt::new(&self.breakers, keys, HealthChecks::new()));
        }
        let nodes = nodes_of(&*self.store, &keys);
        let (admission, changes) = self.breakers.admit(&nodes, !cells.is_empty(), self.deadline);
        self.report_changes(changes);
        let node = match admission {
            Admission::Proceed(trials) => return Ok(Attempt::new(&self.breakers, keys, trials)),
            Admission::Probe(check) => {
                let (node, probe) = (check.node.clone(), Probe::new(&self.breakers, check));
                match Handle::try_current() {
                    Ok(runtime) => self.probe(&runtime, probe, cells),
                    // Without a runtime, no probe can run in the background, so the request is the trial.
                    Err(_) => return Ok(probe.into_trial(keys)),
                }
                node
            }
            Admission::Reject(node) => node,
        };
        let error = StoreError::breaker_open();
        let error = if let Some(node) = node { error.at(node) } else { error };
        self.report_failure(&error);
        Err(error)
    }

    /// Probes a node in the background, by a peek at those cells whose keys are on it.
    fn probe(self: &Arc<Self>, runtime: &Handle, probe: Probe, cells: &[Cell]) {
        let on_node = cells.iter().filter(|cell| self.store.node(cell.key()).as_ref() == probe.node());
        let mut on_node: Cells = on_node.cloned().collect();
        if on_node.is_empty() {
            // The keys have moved to another node meanwhile.
            return probe.withdraw();
        }
        let answer = self.store.decide(&mut on_node, Purpose::Peek);
        match answer.into_pending() {
            Ok(Ok(answer)) if answer.is_remembered() => probe.withdraw(),
            Ok(answer) => self.end_probe(probe, answer),
            Err(pending) => {
                let client = self.clone();
                runtime.spawn(async move {
                    let answer = timeout(client.deadline, pending).await;
                    client.end_probe(probe, answer.unwrap_or_else(|_| Err(StoreError::timed_out(client.deadline))));
                });
            }
        }
    }

    /// Ends a probe, and reports the change of its breaker, if any.
    fn end_probe<T>(&self, probe: Probe, answer: Result<T, StoreError>) {
        if matches!(&answer, Err(error) if error.is_inconclusive()) {
            // This shows nothing about the node.
            return probe.withdraw();
        }
        let failure = answer.err().filter(|error| !error.is_of_one_request());
        self.report_changes(probe.end(failure.is_none()));
        if let Some(error) = failure {
            self.log_failure(&error);
        }
    }

    /// Calls the store for an operation on `keys` that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        keys: Keys,
        operation: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let attempt = match self.admit_keys(keys, &[]) {
            Ok(attempt) => attempt,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        match operation(&*self.store).into_pending() {
            Ok(answer) => StoreFuture::ready(self.record_result(Some(attempt), answer)),
            Err(pending) => {
                let client = self.clone();
                StoreFuture::pending(async move { client.await_answer(attempt, pending).await })
            }
        }
    }

    /// Awaits the store's answer, for at most the deadline, and records the result.
    pub(crate) async fn await_answer<T>(
        &self,
        attempt: Attempt,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut answer = pin!(answer);
        // Stores read the longest wait when they begin. Setting it for each poll would take 200 instructions more
        // ("Redis' client, 64 at a time" in `.ci/instructions`).
        let mut begin = Some(self.deadline / 2);
        let answer = poll_fn(|context| match begin.take() {
            Some(longest) => LONGEST_WAIT.sync_scope(longest, || answer.as_mut().poll(context)),
            None => answer.as_mut().poll(context),
        });
        let answer = timeout(self.deadline, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::timed_out(self.deadline)));
        self.report(attempt.record(&*self.store, answer))
    }

    /// Records an answer that was ready at once, if the attempt is a trial. Otherwise, the answer may come from memory,
    /// so it shows nothing about the health of the store.
    pub(super) fn record_result<T>(
        &self,
        attempt: Option<Attempt>,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.report(match attempt.filter(Attempt::is_trial) {
            Some(attempt) => attempt.record(&*self.store, answer),
            None => (answer, Changes::new()),
        })
    }

    /// Reports a recorded answer's error and the changes of breakers, and returns the answer.
    fn report<T>(&self, (answer, changes): (Result<T, StoreError>, Changes)) -> Result<T, StoreError> {
        if let Err(error) = &answer {
            self.report_failure(error);
        }
        self.report_changes(changes);
        answer
    }
}
