//! Refunds receipts and resets keys, in the store that took the charges.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::client::StoreClient;
use crate::decision::{Cell, Cells, DecidedBy, Receipt};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::store::StoreFuture;

impl StoreClient {
    /// Refunds the charges of a receipt, as far as they still count. Leaves out limits that no longer exist.
    pub(crate) fn refund(self: &Arc<Self>, Receipt { by, mut charged }: Receipt) -> StoreFuture<()> {
        self.limits.fit_refund(&mut charged);
        if by != DecidedBy::Store || charged.is_empty() {
            self.local.refund(&charged);
            return StoreFuture::ready(Ok(()));
        }
        self.call(charged.iter().map(Cell::key).collect(), |store| store.refund(&charged))
    }

    /// Refunds the charges of a receipt where they were made, without a breaker.
    pub(crate) async fn refund_by(&self, Receipt { by, mut charged }: Receipt) -> Result<(), StoreError> {
        self.limits.fit_refund(&mut charged);
        match by {
            DecidedBy::Store => self.store.refund(&charged).await,
            DecidedBy::Local | DecidedBy::Nobody => {
                self.local.refund(&charged);
                Ok(())
            }
        }
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
        self.reset_cells(&self.limits.cells_of(key, |_| 0))
    }

    /// Resets the keys of cells.
    pub(crate) fn reset_cells(self: &Arc<Self>, cells: &Cells) -> StoreFuture<()> {
        self.local.reset(cells);
        self.call(cells.iter().map(Cell::key).collect(), |store| store.reset(cells))
    }
}
