//! The reservation of a delayed request.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Sleep;

use super::client::StoreClient;
use crate::decision::Decision;

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
        Self { client: client.clone(), decision: Some(decision), turn: Box::pin(tokio::time::sleep(delay)) }
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
