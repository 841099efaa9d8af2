//! Decides requests, charges them, and refunds their costs.

use super::find::Finder;
use super::request_limits::RequestLimits;
use crate::decision::{Charges, Decision, Purpose};
use crate::key::head::RequestHead;
use crate::limit::MAX_PER_REQUEST;
use crate::recorder::{Event, Reason};
use crate::select::ListKind;

/// Decides requests together. Charges all of them if all are allowed, and records the rejection otherwise.
///
/// # Errors
///
/// Returns the reason if a request is rejected without a decision.
pub(crate) async fn decide(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Result<Vec<Decision>, Reason> {
    let engine = &requests.engine;
    let (parts, all) = find_all(requests, heads).await?;
    let decision = engine.decide(all, Purpose::Take).await.map_err(|_| store_failed(requests, heads))?;
    let decisions: Vec<_> = parts.iter().map(|charges| decision.part(charges)).collect();
    if let Some((head, denied)) = heads.iter().zip(&decisions).find(|(_, decision)| !decision.is_allowed()) {
        let retry_after = denied.retry_after();
        engine.reject(Reason::Limited { retry_after }, Some(denied), retry_after, head);
    }
    Ok(decisions)
}

/// Refunds the costs of requests that were charged earlier, without their receipts: as if they had been charged now.
/// Returns their states after that.
///
/// # Errors
///
/// Returns the reason if a request would be rejected without a decision, or if the store fails, whatever the policy for
/// that is: the policy can't refund what the store has charged. Records the rejection.
pub(crate) async fn refund_costs(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Result<Vec<Decision>, Reason> {
    let engine = &requests.engine;
    let (mut parts, mut all) = find_all(requests, heads).await?;
    if all.is_empty() {
        return Ok(parts.iter().map(|_| Decision::unlimited()).collect());
    }
    let peek = async |charges| match engine.decide(charges, Purpose::Peek).await {
        Ok(decision) if decision.decided_by().is_store() => Ok(decision),
        _ => Err(store_failed(requests, heads)),
    };
    let receipt = peek(all.clone()).await?.into_receipt_of_costs();
    engine.refund_own(receipt, true).await.map_err(|_| store_failed(requests, heads))?;
    parts.iter_mut().chain([&mut all]).for_each(Charges::clear_costs);
    let decision = peek(all).await?;
    Ok(parts.iter().map(|charges| decision.part(charges)).collect())
}

/// Finds the charges of each request, and of all of them together.
///
/// # Errors
///
/// Returns the reason if a request is rejected, and records that.
async fn find_all(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Result<(Vec<Charges>, Charges), Reason> {
    let (mut parts, mut all) = (Vec::new(), requests.engine.limits.no_charges());
    for head in heads {
        let charges = find(requests, head).await.map_err(|reason| reject(requests, reason, head))?;
        all.add(&charges);
        if all.len() > MAX_PER_REQUEST {
            return Err(reject(requests, Reason::TooManyLimits, head));
        }
        parts.push(charges);
    }
    Ok((parts, all))
}

/// Records that requests are rejected because the store has failed, and returns that reason.
fn store_failed(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Reason {
    heads.first().map_or(Reason::StoreFailed, |head| reject(requests, Reason::StoreFailed, head))
}

/// Records that a request is rejected without a decision, and returns the reason.
fn reject(requests: &RequestLimits, reason: Reason, head: &RequestHead<'_>) -> Reason {
    requests.engine.reject(reason, None, None, head);
    reason
}

/// Finds the charges of a request.
async fn find(requests: &RequestLimits, head: &RequestHead<'_>) -> Result<Charges, Reason> {
    let (listed, matched) = requests.lists.find(head);
    matched.into_iter().for_each(|action| requests.engine.report_event(&Event::ListMatched { action }));
    match listed {
        Some(ListKind::Rejects(action)) => return Err(Reason::Listed(action)),
        Some(ListKind::Exempts) => return Ok(requests.engine.limits.no_charges()),
        None => {}
    }
    let mut finder = Finder::new(requests, head);
    for pending in finder.find() {
        if finder.missing_key.is_none() {
            finder.resolve(pending).await;
        }
    }
    if let Some(error) = finder.missing_key {
        return Err(Reason::MissingKey(error));
    }
    finder.complete();
    Ok(finder.charges)
}
