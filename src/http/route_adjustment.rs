//! Adjusts the charges of an outer layer to the cost of a route.

use std::sync::Arc;

use super::balance::{Balance, charges};
use super::layer_config::LayerConfig;
use super::ledger::Ledger;
use crate::decision::{DecidedBy, Decision};
use crate::error::StoreError;
use crate::reason::Reason;
use crate::resilience::StoreClient;
use crate::store::Charge;

/// Charges the difference to `cost`, all or nothing, in the store that took the first charge.
///
/// If the difference is denied, the earlier charges are refunded and the full cost is requested, so that the decision
/// has the wait for the full cost. If the store fails, the remaining refunds are completed in the background.
///
/// # Errors
///
/// Returns an error if the store can't decide and the policy is to reject.
pub(super) async fn adjust_to_route(ledger: &Ledger, config: &LayerConfig, cost: u64) -> Result<Decision, Reason> {
    let client = &config.client;
    // Before the decision, because a denial empties the ledger.
    let resized = ledger.resized();
    let decision = decide(ledger, client, cost).await.map(|decision| decision.with_resized(&resized));
    if !decision.as_ref().is_ok_and(Decision::is_allowed) {
        while let Some(charged) = ledger.pop() {
            client.refund_in_background(&charged.into_receipt());
        }
    }
    decision.map_err(|_| Reason::StoreFailed)
}

async fn decide(ledger: &Ledger, client: &Arc<StoreClient>, cost: u64) -> Result<Decision, StoreError> {
    let limits = client.limits();
    let has_own_cost = |limit: usize| limits.as_slice().get(limit).is_none_or(|limit| limit.own_cost().is_some());
    let (by, balances) = ledger.balances(limits, &|limit, paid| if has_own_cost(limit) { paid } else { cost });
    // If the difference is denied, the full cost is requested, and only that denial counts towards penalties.
    let without_strikes =
        limits.has_penalties().then(|| balances.iter().map(Balance::without_strikes).collect::<Vec<_>>());
    let difference = charges(without_strikes.as_deref().unwrap_or(&balances), Balance::missing);
    let recording = client.start_recording();
    let decision = decide_difference(ledger, client, by, &balances, &difference).await;
    decision.inspect(|decision| client.record_waited(recording, decision, &difference))
}

async fn decide_difference(
    ledger: &Ledger,
    client: &Arc<StoreClient>,
    by: DecidedBy,
    balances: &[Balance],
    difference: &[Charge<'_>],
) -> Result<Decision, StoreError> {
    let mut denied = None;
    let decision = request_difference(ledger, client, by, balances, difference, &mut denied);
    if by != DecidedBy::Store {
        return decision.await;
    }
    let error = match client.admit(difference) {
        Ok(attempt) => match client.await_answer(attempt, decision).await {
            Ok(decision) => return Ok(decision),
            Err(error) => error,
        },
        Err(error) => {
            drop(decision);
            error
        }
    };
    // A denial of the difference stands, even if the store has failed since.
    denied.map_or_else(|| client.fall_back_to_acquire(error, difference), Ok)
}

/// Calls the store that took the first charge. Sets `denied` if the difference is denied.
async fn request_difference(
    ledger: &Ledger,
    client: &StoreClient,
    by: DecidedBy,
    balances: &[Balance],
    difference: &[Charge<'_>],
    denied: &mut Option<Decision>,
) -> Result<Decision, StoreError> {
    for receipt in ledger.take_excess(balances) {
        client.charged_store(receipt.by).refund(&client.refunds(&receipt)).await?;
    }
    let decision = client.charged_store(by).decide(difference).await?;
    if decision.is_allowed() {
        return Ok(decision);
    }
    *denied = Some(decision);
    // Each charge is removed from the ledger before the call, so that a refund whose result is unknown is not repeated.
    // A queue releases only its last slot, so the last charge is refunded first.
    while let Some(charged) = ledger.pop() {
        let by = charged.decided_by();
        let receipt = charged.into_receipt();
        client.charged_store(by).refund(&client.refunds(&receipt)).await?;
    }
    client.charged_store(by).decide(&charges(balances, |balance| balance.target.cost)).await
}
