//! An allowed request that waits for its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Engine, SlotGuard};
use crate::error::StoreError;

/// An allowed request that is delayed. Dropping it before its turn refunds its charges.
#[must_use = "dropping a reservation refunds it"]
pub(crate) struct Reservation {
    engine: Arc<Engine>,
    /// `None` once its turn has come.
    held: Option<SlotGuard>,
    turn: Instant,
}

impl Reservation {
    /// Starts the delay of an allowed request.
    pub(crate) fn new(engine: &Arc<Engine>, held: SlotGuard, delay: Duration) -> Self {
        Self { engine: engine.clone(), held: Some(held), turn: Instant::now() + delay }
    }

    /// Waits for the request's turn.
    ///
    /// # Errors
    ///
    /// Returns an error outside a Tokio runtime.
    pub(crate) async fn wait(mut self) -> Result<SlotGuard, StoreError> {
        StoreError::check_runtime()?;
        sleep_until(self.turn).await;
        Ok(self.held.take().expect("`wait` consumes the reservation"))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.refund_in_background(held.decision.into_receipt());
        }
    }
}
