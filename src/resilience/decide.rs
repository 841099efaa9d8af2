//! Decides requests by the store, or by the fallback policies when the store does not decide.

use std::sync::Arc;

use smallvec::SmallVec;

use super::attempt::{Attempt, keys_of};
use super::breakers::HealthChecks;
use super::client::StoreClient;
use super::events::Recording;
use super::operation::Operation;
use crate::decision::Decision;
use crate::store::{Charge, OwnedCharge, Store, StoreFuture};

impl StoreClient {
    /// Decides a request, and takes its charges from all its limits or from none.
    #[inline]
    pub(crate) fn acquire(self: &Arc<Self>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.decide(Operation::Acquire, charges)
    }

    /// Decides a request as [`acquire`](Self::acquire) would now, without taking anything.
    pub(crate) fn peek(self: &Arc<Self>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.decide(Operation::Peek, charges)
    }

    /// Decides and charges a request by this process's share of the limits, after the store has failed before.
    pub(crate) fn decide_locally(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let recording = self.start_recording();
        let decision = self.local.decide(charges);
        self.record_ready(recording, &decision, charges);
        decision
    }

    #[inline]
    fn decide(self: &Arc<Self>, operation: Operation, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if !self.breakers.are_closed() || self.has_recorders() {
            return self.decide_and_record(operation, charges);
        }
        let answer = operation.run(&*self.store, charges);
        if answer.is_settled() {
            return answer;
        }
        self.complete(operation, None, None, answer, charges)
    }

    /// Decides while a breaker exists, or for recorders.
    #[cold]
    fn decide_and_record(self: &Arc<Self>, operation: Operation, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let recording = if operation == Operation::Acquire { self.start_recording() } else { None };
        if !self.breakers.are_closed() {
            return self.decide_if_admitted(operation, recording, charges);
        }
        let answer = operation.run(&*self.store, charges);
        if answer.is_settled() {
            self.record_ready(recording, &answer, charges);
            return answer;
        }
        self.complete(operation, recording, None, answer, charges)
    }

    /// Decides while at least one breaker exists.
    #[cold]
    fn decide_if_admitted(
        self: &Arc<Self>,
        operation: Operation,
        recording: Option<Recording>,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let answer = match self.store.remembered(charges) {
            Some(decision) => StoreFuture::remembered(decision),
            None => match self.admit(charges) {
                Err(error) => StoreFuture::ready(self.fall_back(operation, error, charges)),
                Ok(attempt) => {
                    let answer = operation.run(&*self.store, charges);
                    if !answer.is_remembered() {
                        return self.complete(operation, recording, Some(attempt), answer, charges);
                    }
                    answer
                }
            },
        };
        self.record_ready(recording, &answer, charges);
        answer
    }

    /// Awaits a pending answer until the deadline, replaces an error by the policies' decision, and records the
    /// decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        operation: Operation,
        recording: Option<Recording>,
        attempt: Option<Attempt>,
        answer: StoreFuture<Decision>,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let pending = match answer.into_pending() {
            Ok(answer) => {
                let result = self.record_result(attempt, answer);
                let result = result.or_else(|error| self.fall_back(operation, error, charges));
                let answer = StoreFuture::ready(result);
                self.record_ready(recording, &answer, charges);
                return answer;
            }
            Err(pending) => pending,
        };
        let attempt = attempt.unwrap_or_else(|| Attempt::new(&self.breakers, keys_of(charges), HealthChecks::new()));
        let client = self.clone();
        let charges: SmallVec<[OwnedCharge; 2]> = charges.iter().map(OwnedCharge::from).collect();
        StoreFuture::pending(async move {
            let result = client.await_answer(attempt, pending).await;
            let charges: SmallVec<[Charge<'_>; 4]> = charges.iter().map(OwnedCharge::as_charge).collect();
            let result = result.or_else(|error| client.fall_back(operation, error, &charges));
            result.inspect(|decision| client.record_waited(recording, decision, &charges))
        })
    }
}
