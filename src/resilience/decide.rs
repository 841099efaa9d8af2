//! Decides requests, and previews decisions: by the store, or by the fallback policies when the store does not decide.

use std::sync::Arc;
use std::time::Instant;

use super::GuardedStore;
use super::breaker::Call;
use crate::decision::{Cells, DecidedBy, Decision};
use crate::error::StoreError;
use crate::recorder::{DecisionSource, Event, Fallback};
use crate::store::{Answer, Purpose, StoreFuture};

/// The decision that a request would get.
pub(crate) struct Preview {
    pub(crate) source: PreviewSource,
    /// `None` if the request would be rejected because the store failed.
    pub(crate) decision: Option<Decision>,
}

/// The part of the limiter that would decide a request.
pub(crate) enum PreviewSource {
    Store,
    /// A decision that the store knows without asking its database.
    Remembered,
    /// The fallback policies, because the store does not decide.
    Policies(Fallback, StoreError),
}

impl GuardedStore {
    /// Decides a request. [Takes](Purpose::Take) its costs from all its limits or from none.
    #[inline]
    pub(crate) fn decide(self: &Arc<Self>, mut cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        if cells.is_empty() {
            return StoreFuture::ready(Ok(Decision::unlimited()));
        }
        if !self.breakers.are_closed() {
            return self.decide_if_admitted(cells, purpose);
        }
        let began = self.start_recording(purpose);
        match self.store.decide(&mut cells, purpose).into_ready() {
            Ok(Ok(answer)) if began.is_none() => {
                let at = answer.finish(&mut cells);
                Decision::merge_penalties(&mut cells);
                StoreFuture::ready(Ok(Decision::of(at, DecidedBy::Store, purpose == Purpose::Take, cells)))
            }
            Ok(Ok(answer)) => {
                let source =
                    if answer.is_remembered() { DecisionSource::RememberedDenial } else { DecisionSource::Memory };
                let decision = decision(answer, cells, purpose);
                self.record(began, source, &decision);
                StoreFuture::ready(Ok(decision))
            }
            Ok(Err(error)) => {
                self.complete(self.breakers.begin(), StoreFuture::ready(Err(error)), cells, purpose, began)
            }
            Err(pending) => self.complete(self.breakers.begin(), pending, cells, purpose, began),
        }
    }

    /// Decides while a breaker exists.
    #[cold]
    fn decide_if_admitted(self: &Arc<Self>, mut cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        let began = self.start_recording(purpose);
        if let Some(at) = self.store.remembered(&mut cells) {
            let decision = decision(Answer::new(at), cells, purpose);
            self.record(began, DecisionSource::RememberedDenial, &decision);
            return StoreFuture::ready(Ok(decision));
        }
        match self.begin(&cells) {
            Ok(call) => {
                let answer = self.store.decide(&mut cells, purpose);
                self.complete(call, answer, cells, purpose, began)
            }
            Err(error) => StoreFuture::ready(self.decide_locally(Some(error), cells, purpose, began)),
        }
    }

    /// Awaits the answer of a call, replaces an error by the policies' decision, and records the decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        call: Call,
        answer: StoreFuture<Answer>,
        cells: Cells,
        purpose: Purpose,
        began: Option<Instant>,
    ) -> StoreFuture<Decision> {
        self.follow(answer, move |guarded, answer, source| {
            let (answer, source) = match answer {
                // The database was not asked, so this shows nothing about it.
                Ok(answer) if answer.is_remembered() => (Ok(answer), DecisionSource::RememberedDenial),
                answer => (guarded.end(&call, &cells, answer, source), source),
            };
            match answer {
                Ok(answer) => {
                    let decision = decision(answer, cells, purpose);
                    guarded.record(began, source, &decision);
                    Ok(decision)
                }
                Err(error) => guarded.decide_locally(Some(error), cells, purpose, began),
            }
        })
    }

    /// Decides a request where an earlier decision about it was made.
    pub(crate) fn decide_by(self: &Arc<Self>, by: DecidedBy, cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        if by == DecidedBy::Store || cells.is_empty() {
            return self.decide(cells, purpose);
        }
        let began = self.start_recording(purpose);
        StoreFuture::ready(self.decide_locally(None, cells, purpose, began))
    }

    /// Decides a request by the policies of its limits, because the store has failed: now, or before. Returns the error
    /// if they reject it.
    pub(crate) fn decide_locally(
        &self,
        error: Option<StoreError>,
        cells: Cells,
        purpose: Purpose,
        began: Option<Instant>,
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.local.decide(purpose, cells);
        if error.is_some() {
            self.report_event(&Event::FellBack { to });
        }
        let decision = decision.ok_or_else(|| error.unwrap_or_else(|| StoreError::breaker_open(None)))?;
        self.record(began, DecisionSource::Fallback, &decision);
        Ok(decision)
    }

    /// Decides a request as [`decide`](Self::decide) would now, and changes nothing: neither the store, nor the
    /// breakers, nor the log.
    pub(crate) async fn preview(self: &Arc<Self>, mut cells: Cells) -> Preview {
        let (source, answer) = if let Some(at) = self.store.remembered(&mut cells) {
            (PreviewSource::Remembered, Ok(Answer::new(at)))
        } else if let Some(error) = self.breakers.rejection(&self.nodes(&cells)) {
            (PreviewSource::Store, Err(error))
        } else {
            let answer = self.store.decide(&mut cells, Purpose::Preview);
            (PreviewSource::Store, self.follow(answer, |_, answer, _| answer).await)
        };
        match answer {
            Ok(answer) => Preview { source, decision: Some(decision(answer, cells, Purpose::Preview)) },
            Err(error) => {
                let (fallback, decision) = self.local.decide(Purpose::Preview, cells);
                Preview { source: PreviewSource::Policies(fallback, error), decision }
            }
        }
    }
}

/// Creates the decision of the store's answer.
fn decision(answer: Answer, mut cells: Cells, purpose: Purpose) -> Decision {
    let at = answer.finish(&mut cells);
    Decision::merge_penalties(&mut cells);
    Decision::of(at, DecidedBy::Store, purpose == Purpose::Take, cells)
}
