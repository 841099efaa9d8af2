//! Previews of decisions, which affect neither the store, nor the breakers, nor the log.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::attempt::{keys_of, nodes_of};
use super::client::StoreClient;
use super::decide::decision;
use crate::decision::{Cell, Cells, Decision};
use crate::error::StoreError;
use crate::recorder::Fallback;
use crate::store::{Answer, Purpose};

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

impl StoreClient {
    /// Decides a request as [`acquire`](Self::acquire) would now, and changes nothing.
    pub(crate) async fn preview(self: &Arc<Self>, mut cells: Cells) -> Preview {
        if let Some(at) = self.store.remembered(&mut cells) {
            let decision = Some(decision(Answer::new(at), cells, Purpose::Preview));
            return Preview { source: PreviewSource::Remembered, decision };
        }
        if let Some(error) = self.rejection(&cells) {
            return self.preview_policies(error, cells);
        }
        let answer = match self.store.decide(&mut cells, Purpose::Preview).into_pending() {
            Ok(answer) => answer,
            Err(pending) => {
                let answer = timeout(self.deadline, pending).await;
                answer.unwrap_or_else(|_| Err(StoreError::timed_out(self.deadline)))
            }
        };
        match answer {
            Ok(answer) => {
                let decision = Some(decision(answer, cells, Purpose::Preview));
                Preview { source: PreviewSource::Store, decision }
            }
            Err(error) => self.preview_policies(error, cells),
        }
    }

    /// Returns the name of the store, if it has one.
    pub(crate) fn store_name(&self) -> Option<String> {
        self.store.name()
    }

    fn preview_policies(&self, error: StoreError, cells: Cells) -> Preview {
        let (fallback, decision) = self.local.decide(Purpose::Preview, cells);
        Preview { source: PreviewSource::Policies(fallback, error), decision }
    }

    /// Returns why a request would not be admitted to the store, if a breaker is open.
    fn rejection(&self, cells: &[Cell]) -> Option<StoreError> {
        if self.breakers.are_closed() {
            return None;
        }
        let nodes = nodes_of(&*self.store, &keys_of(cells));
        // A request probes a node in the background if it can, and is rejected meanwhile.
        let node = self.breakers.rejecting(&nodes, Handle::try_current().is_ok())?;
        let error = StoreError::breaker_open();
        Some(if let Some(node) = node { error.at(node) } else { error })
    }
}
