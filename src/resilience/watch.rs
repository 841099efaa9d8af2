//! Admits calls to the store, bounds them by the deadline, and records their results per node.

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::attempt::{Attempt, Keys, Probe, keys_of, nodes_of};
use super::breakers::{Admission, Changes, HealthChecks};
use super::client::StoreClient;
use crate::error::{StoreError, StoreErrorKind};
use crate::observe::Event;
use crate::store::Charge;

impl StoreClient {
    /// Admits a request with these charges to the store. If it is rejected, a node whose breaker is open may be probed
    /// with them.
    ///
    /// # Errors
    ///
    /// When the breaker of a node is open.
    pub(crate) fn admit(self: &Arc<Self>, charges: &[Charge<'_>]) -> Result<Attempt, StoreError> {
        self.admit_keys(keys_of(charges), charges)
    }

    /// Admits a request about `keys`. If it is rejected, a node may be probed with the `charges`.
    pub(super) fn admit_keys(self: &Arc<Self>, keys: Keys, charges: &[Charge<'_>]) -> Result<Attempt, StoreError> {
        if self.breakers.are_closed() {
            return Ok(Attempt::new(&self.breakers, keys, HealthChecks::new()));
        }
        let nodes = nodes_of(&*self.store, &keys);
        let (admission, changes) = self.breakers.admit(&nodes, !charges.is_empty(), self.deadline);
        self.tell_changes(changes);
        let node = match admission {
            Admission::Proceed(trials) => return Ok(Attempt::new(&self.breakers, keys, trials)),
            Admission::Probe(check) => {
                let (node, probe) = (check.node.clone(), Probe::new(&self.breakers, check));
                match Handle::try_current() {
                    Ok(runtime) => self.probe(&runtime, probe, charges),
                    // Nothing can run in the background: the request is the trial.
                    Err(_) => return Ok(probe.into_trial(keys)),
                }
                node
            }
            Admission::Reject(node) => node,
        };
        let error = StoreError::breaker_open();
        let error = if let Some(node) = node { error.at(node) } else { error };
        self.tell_failure(&error);
        Err(error)
    }

    /// Probes a node in the background with a peek at its share of the charges.
    fn probe(self: &Arc<Self>, runtime: &Handle, probe: Probe, charges: &[Charge<'_>]) {
        let own = charges.iter().copied().filter(|charge| self.store.node(charge.key).as_ref() == probe.node());
        let own: SmallVec<[Charge<'_>; 4]> = own.collect();
        if own.is_empty() {
            // Another node has them by now.
            return probe.withdraw();
        }
        let answer = self.store.peek(&own);
        if answer.is_remembered() {
            return probe.withdraw();
        }
        match answer.into_pending() {
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

    fn end_probe<T>(&self, probe: Probe, answer: Result<T, StoreError>) {
        if matches!(&answer, Err(error) if error.kind() == StoreErrorKind::QueueFull) {
            // The probe was not sent: a burst of requests says nothing about the node.
            return probe.withdraw();
        }
        let failure = answer.err().filter(|error| !error.is_of_one_request());
        self.tell_changes(probe.end(failure.is_none()));
        #[cfg(feature = "tracing")]
        if let Some(error) = failure {
            self.reports.failed(&error);
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
        self.report(attempt.record(&*self.store, answer))
    }

    /// Records an answer that was ready at once, if the attempt is a trial. Otherwise it is no evidence, as no one had to
    /// wait for it.
    pub(super) fn record_ready<T>(
        &self,
        attempt: Option<Attempt>,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.report(match attempt.filter(Attempt::is_trial) {
            Some(attempt) => attempt.record(&*self.store, answer),
            None => (answer, Changes::new()),
        })
    }

    fn report<T>(&self, (answer, changes): (Result<T, StoreError>, Changes)) -> Result<T, StoreError> {
        if let Err(error) = &answer {
            self.tell_failure(error);
        }
        self.tell_changes(changes);
        answer
    }

    fn tell_failure(&self, error: &StoreError) {
        self.observer.tell(&Event::StoreFailed { error });
        #[cfg(feature = "tracing")]
        self.reports.failed(error);
    }

    fn tell_changes(&self, changes: Changes) {
        for (node, state) in changes {
            self.observer.tell(&Event::BreakerChanged { state, node: node.as_ref() });
            #[cfg(feature = "tracing")]
            self.reports.changed(node.as_ref(), state);
        }
    }
}
