//! Decides requests by the store, or by the fallback policies when the store does not decide.

use std::sync::Arc;

use smallvec::SmallVec;

use super::attempt::{Attempt, keys_of};
use super::breakers::HealthChecks;
use super::client::StoreClient;
use super::operation::Operation;
use crate::decision::Decision;
use crate::store::{Charge, OwnedCharge, StoreFuture};

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

    #[inline]
    fn decide(self: &Arc<Self>, operation: Operation, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if !self.breakers.are_closed() {
            return self.decide_if_admitted(operation, charges);
        }
        let answer = operation.run(&*self.store, charges);
        if answer.is_settled() && !self.reports_decisions {
            return answer;
        }
        self.complete(operation, None, answer, charges)
    }

    /// Decides while at least one breaker exists.
    #[cold]
    fn decide_if_admitted(self: &Arc<Self>, operation: Operation, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if let Some(decision) = self.store.remembered(charges) {
            return StoreFuture::remembered(decision);
        }
        match self.admit(charges) {
            Ok(attempt) => {
                let answer = operation.run(&*self.store, charges);
                if answer.is_remembered() {
                    return answer;
                }
                self.complete(operation, Some(attempt), answer, charges)
            }
            Err(error) => {
                let result = self.fall_back(operation, error, charges);
                StoreFuture::ready(result.inspect(|decision| self.report_if_acquired(operation, decision)))
            }
        }
    }

    /// Awaits a pending answer until the deadline, replaces an error by the policies' decision, and reports the
    /// decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        operation: Operation,
        attempt: Option<Attempt>,
        answer: StoreFuture<Decision>,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let pending = match answer.into_pending() {
            Ok(answer) => {
                let result = self.record_ready(attempt, answer);
                let result = result.or_else(|error| self.fall_back(operation, error, charges));
                return StoreFuture::ready(result.inspect(|decision| self.report_if_acquired(operation, decision)));
            }
            Err(pending) => pending,
        };
        let attempt = attempt.unwrap_or_else(|| Attempt::new(&self.breakers, keys_of(charges), HealthChecks::new()));
        let client = self.clone();
        let charges: SmallVec<[OwnedCharge; 2]> = charges.iter().map(OwnedCharge::from).collect();
        StoreFuture::pending(async move {
            let result = client.await_answer(attempt, pending).await;
            let result = result.or_else(|error| {
                let charges: SmallVec<[Charge<'_>; 4]> = charges.iter().map(OwnedCharge::as_charge).collect();
                client.fall_back(operation, error, &charges)
            });
            result.inspect(|decision| client.report_if_acquired(operation, decision))
        })
    }

    fn report_if_acquired(&self, operation: Operation, decision: &Decision) {
        if operation == Operation::Acquire {
            self.report_decision(decision);
        }
    }
}
