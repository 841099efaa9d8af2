//! Decides requests by the store, or by the fallback policies when the store does not decide.

use std::sync::Arc;

use super::attempt::{Attempt, keys_of};
use super::breakers::HealthChecks;
use super::client::StoreClient;
use super::events::Recording;
use crate::decision::{Cells, DecidedBy, Decision};
use crate::error::StoreError;
use crate::recorder::{DecisionSource, Event};
use crate::store::{Answer, Purpose, StoreFuture};

impl StoreClient {
    /// Decides a request, and takes its costs from all its limits or from none.
    #[inline]
    pub(crate) fn acquire(self: &Arc<Self>, cells: Cells) -> StoreFuture<Decision> {
        self.decide(cells, Purpose::Take)
    }

    /// Decides a request as [`acquire`](Self::acquire) would now, without taking anything.
    pub(crate) fn peek(self: &Arc<Self>, cells: Cells) -> StoreFuture<Decision> {
        self.decide(cells, Purpose::Peek)
    }

    #[inline]
    fn decide(self: &Arc<Self>, mut cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        if cells.is_empty() {
            return StoreFuture::ready(Ok(Decision::uncounted()));
        }
        if !self.breakers.are_closed() || self.has_recorders() {
            return self.decide_and_record(cells, purpose);
        }
        match self.store.decide(&mut cells, purpose).into_ready() {
            Ok(Ok(answer)) => {
                let at = answer.finish(&mut cells);
                Decision::merge_penalties(&mut cells);
                StoreFuture::ready(Ok(Decision::of(at, DecidedBy::Store, purpose == Purpose::Take, cells)))
            }
            Ok(Err(error)) => self.complete(cells, purpose, None, None, StoreFuture::ready(Err(error))),
            Err(pending) => self.complete(cells, purpose, None, None, pending),
        }
    }

    /// Decides while a breaker exists, or for recorders.
    #[cold]
    fn decide_and_record(self: &Arc<Self>, mut cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        let recording = if purpose == Purpose::Take { self.start_recording() } else { None };
        let mut attempt = None;
        if !self.breakers.are_closed() {
            if let Some(at) = self.store.remembered(&mut cells) {
                let decision = decision(Answer::new(at), cells, purpose);
                self.record(recording, DecisionSource::RememberedDenial, &decision);
                return StoreFuture::ready(Ok(decision));
            }
            match self.admit(&cells) {
                Ok(admitted) => attempt = Some(admitted),
                Err(error) => return StoreFuture::ready(self.fall_back(error, cells, purpose, recording)),
            }
        }
        let answer = self.store.decide(&mut cells, purpose);
        self.complete(cells, purpose, recording, attempt, answer)
    }

    /// Awaits a pending answer until the deadline, replaces an error by the policies' decision, and records the
    /// decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        cells: Cells,
        purpose: Purpose,
        recording: Option<Recording>,
        attempt: Option<Attempt>,
        answer: StoreFuture<Answer>,
    ) -> StoreFuture<Decision> {
        match answer.into_pending() {
            Ok(Ok(answer)) if answer.is_remembered() => {
                let decision = decision(answer, cells, purpose);
                self.record(recording, DecisionSource::RememberedDenial, &decision);
                StoreFuture::ready(Ok(decision))
            }
            Ok(answer) => StoreFuture::ready(match self.record_result(attempt, answer) {
                Ok(answer) => {
                    let decision = decision(answer, cells, purpose);
                    self.record(recording, DecisionSource::Memory, &decision);
                    Ok(decision)
                }
                Err(error) => self.fall_back(error, cells, purpose, recording),
            }),
            Err(pending) => {
                let attempt =
                    attempt.unwrap_or_else(|| Attempt::new(&self.breakers, keys_of(&cells), HealthChecks::new()));
                let client = self.clone();
                StoreFuture::pending(async move {
                    match client.await_answer(attempt, pending).await {
                        Ok(answer) => {
                            let decision = decision(answer, cells, purpose);
                            client.record(recording, DecisionSource::Store, &decision);
                            Ok(decision)
                        }
                        Err(error) => client.fall_back(error, cells, purpose, recording),
                    }
                })
            }
        }
    }

    /// Decides a request by the policies of its limits, because the store did not. Returns `error` if they reject it.
    pub(crate) fn fall_back(
        &self,
        error: StoreError,
        cells: Cells,
        purpose: Purpose,
        recording: Option<Recording>,
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.local.decide(purpose, cells);
        self.report_event(&Event::FellBack { to });
        let decision = decision.ok_or(error)?;
        self.record(recording, DecisionSource::Fallback, &decision);
        Ok(decision)
    }

    /// Decides a request where an earlier decision was made, without a breaker.
    pub(crate) async fn decide_by(&self, by: DecidedBy, mut cells: Cells) -> Result<Decision, StoreError> {
        match by {
            DecidedBy::Store => {
                let answer = self.store.decide(&mut cells, Purpose::Take).await?;
                Ok(decision(answer, cells, Purpose::Take))
            }
            DecidedBy::Local | DecidedBy::Nobody => {
                self.local.decide(Purpose::Take, cells).1.ok_or_else(StoreError::breaker_open)
            }
        }
    }

    /// Decides a request by this process's share of the limits, after the store has failed before.
    pub(crate) fn decide_locally(&self, cells: Cells, purpose: Purpose) -> Result<Decision, StoreError> {
        let recording = if purpose == Purpose::Take { self.start_recording() } else { None };
        let decision = self.local.decide(purpose, cells).1.ok_or_else(StoreError::breaker_open)?;
        self.record(recording, DecisionSource::Fallback, &decision);
        Ok(decision)
    }
}

/// Creates the decision of the store's answer.
pub(super) fn decision(answer: Answer, mut cells: Cells, purpose: Purpose) -> Decision {
    let at = answer.finish(&mut cells);
    Decision::merge_penalties(&mut cells);
    Decision::of(at, DecidedBy::Store, purpose == Purpose::Take, cells)
}
