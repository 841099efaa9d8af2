//! Decisions that wait for keys or for the store.

use std::sync::Arc;

use super::charges::{PendingCharges, set_specs};
use super::layer_config::LayerConfig;
use super::ledger::Ledger;
use crate::decision::Decision;
use crate::reason::Reason;
use crate::request::RequestHead;
use crate::store::{Charge, LimitSpec, OwnedCharge, StoreFuture};

/// A decision that has yet to be made.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub(super) enum PendingDecision {
    /// Some keys are still being extracted.
    Keys(PendingCharges),
    /// The store has not answered yet. `resized` contains the limits that have another size for the request.
    Store { decision: StoreFuture<Decision>, resized: Box<[Arc<LimitSpec>]> },
    /// An outer layer has charged the request. The difference to this cost is to be charged.
    Route { ledger: Arc<Ledger>, cost: u64 },
}

impl PendingDecision {
    /// Waits for the decision.
    ///
    /// # Errors
    ///
    /// Returns the reason if the request is rejected without a decision.
    pub(super) async fn decide(self, config: &Arc<LayerConfig>, head: &RequestHead<'_>) -> Result<Decision, Reason> {
        let (decision, resized) = match self {
            Self::Store { decision, resized } => (decision, resized),
            Self::Keys(charges) => {
                let charges = charges.resolve(config, head).await?;
                if charges.is_empty() {
                    return Ok(Decision::uncounted());
                }
                let mut charges: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::as_charge).collect();
                let resized = config.client.limits().specs_for(&charges, head);
                set_specs(&mut charges, &resized);
                (config.client.acquire(&charges), resized)
            }
            Self::Route { ledger, cost } => return ledger.adjust_to_route(cost).await,
        };
        match decision.await {
            Ok(decision) => Ok(decision.with_resized(&resized)),
            Err(_) => Err(Reason::StoreFailed),
        }
    }
}
