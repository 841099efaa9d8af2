//! Decides requests, and charges them.

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
    let (asked, all) = find_all(requests, heads).await?;
    let Ok(decision) = engine.decide(all, Purpose::Take).await else {
        return Err(heads.first().map_or(Reason::StoreFailed, |head| reject(requests, Reason::StoreFailed, head)));
    };
    let decisions: Vec<_> = asked.iter().map(|charges| decision.part(charges)).collect();
    if let Some((head, denied)) = heads.iter().zip(&decisions).find(|(_, decision)| !decision.is_allowed()) {
        let retry_after = denied.retry_after();
        engine.reject(Reason::Limited { retry_after }, Some(denied), retry_after, head);
    }
    Ok(decisions)
}

/// Gives back the costs of requests that were charged earlier, without their receipts: as if they had been charged now.
/// Returns their states after that.
///
/// # Errors
///
/// Returns the reason if a request would be rejected without a decision, or if the store fails.
pub(crate) async fn give_back(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Result<Vec<Decision>, Reason> {
    let engine = &requests.engine;
    let (mut asked, mut all) = find_all(requests, heads).await?;
    let failed = |_| Reason::StoreFailed;
    let states = engine.decide(all.clone(), Purpose::Peek).await.map_err(failed)?;
    engine.refund_own(states.into_receipt_of_peek(), true).await.map_err(failed)?;
    asked.iter_mut().chain([&mut all]).for_each(Charges::clear_costs);
    let decision = engine.decide(all, Purpose::Peek).await.map_err(failed)?;
    Ok(asked.iter().map(|charges| decision.part(charges)).collect())
}

/// Finds the charges of each request, and of all of them together.
///
/// # Errors
///
/// Returns the reason if a request is rejected, and records that.
async fn find_all(requests: &RequestLimits, heads: &[RequestHead<'_>]) -> Result<(Vec<Charges>, Charges), Reason> {
    let (mut asked, mut all) = (Vec::new(), requests.engine.limits.no_charges());
    for head in heads {
        let charges = find(requests, head).await.map_err(|reason| reject(requests, reason, head))?;
        all.add(&charges);
        if all.len() > MAX_PER_REQUEST {
            return Err(reject(requests, Reason::TooManyLimits, head));
        }
        asked.push(charges);
    }
    Ok((asked, all))
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
