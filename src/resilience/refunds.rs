//! Refunds receipts, delayed requests that are dropped, and keys that are reset, in the store that took the charges.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::call::keys;
use super::client::StoreClient;
use crate::decision::{Cells, DecidedBy, Decision, Receipt};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::store::StoreFuture;

impl StoreClient {
    /// Refunds the charges of a receipt, as far as they still count. Leaves out limits that no longer exist.
    pub(crate) fn refund(self: &Arc<Self>, receipt: Receipt) -> StoreFuture<()> {
        match self.refund_locally(receipt) {
            Some(charged) => self.call(keys(&charged).collect(), |store| store.refund(&charged)),
            None => StoreFuture::ready(Ok(())),
        }
    }

    /// Refunds the charges of a receipt where they were made, without a breaker.
    pub(crate) async fn refund_by(&self, receipt: Receipt) -> Result<(), StoreError> {
        match self.refund_locally(receipt) {
            Some(charged) => self.store.refund(&charged).await,
            None => Ok(()),
        }
    }

    /// Refunds the charges that were made in the local store. Returns those that the store took.
    fn refund_locally(&self, Receipt { by, mut charged }: Receipt) -> Option<Cells> {
        self.limits.fit_refund(&mut charged);
        if by == DecidedBy::Store && !charged.is_empty() {
            return Some(charged);
        }
        self.local.refund(&charged);
        None
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that the
    /// store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt).into_ready(), Handle::try_current()) {
            runtime.spawn(pending);
        }
    }

    /// Resets a key under every limit.
    pub(crate) fn reset(self: &Arc<Self>, key: KeyHash) -> StoreFuture<()> {
        self.reset_cells(&self.limits.cells_of(key, 0))
    }

    /// Resets the keys of cells.
    pub(crate) fn reset_cells(self: &Arc<Self>, cells: &Cells) -> StoreFuture<()> {
        self.local.reset(cells);
        self.call(keys(cells).collect(), |store| store.reset(cells))
    }
}

/// An allowed request that is delayed. Dropping it before its turn refunds its charges.
#[must_use = "dropping a reservation refunds it"]
pub(crate) struct ReservationGuard {
    client: Arc<StoreClient>,
    /// `None` once its turn has come.
    decision: Option<Decision>,
    turn: Pin<Box<Sleep>>,
}

impl ReservationGuard {
    /// Starts the delay of an allowed request.
    pub(crate) fn new(client: &Arc<StoreClient>, decision: Decision, delay: Duration) -> Self {
        Self { client: client.clone(), decision: Some(decision), turn: Box::pin(sleep(delay)) }
    }

    /// Waits for the request's turn.
    pub(crate) async fn wait(mut self) -> Decision {
        self.turn.as_mut().await;
        self.decision.take().expect("`wait` consumes the guard")
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.client.refund_in_background(decision.into_receipt());
        }
    }
}
