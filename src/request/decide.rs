//! Decides a request, and charges it.

use super::find::Finder;
use super::request_limits::RequestLimits;
use crate::decision::{Decision, Purpose, Verdict};
use crate::key::head::RequestHead;
use crate::recorder::{Event, Reason};
use crate::select::ListKind;

/// Decides a request, charges it if it is allowed, and records its rejection otherwise.
///
/// # Errors
///
/// Returns the reason if the request is rejected without a decision.
pub(crate) async fn decide(requests: &RequestLimits, head: &RequestHead<'_>) -> Result<Decision, Reason> {
    let engine = &requests.engine;
    let reject = |reason| {
        engine.reject(reason, None, None, head);
        Err(reason)
    };
    let (listed, matched) = requests.lists.find(head);
    matched.into_iter().for_each(|action| engine.report_event(&Event::ListMatched { action }));
    match listed {
        Some(ListKind::Rejects(action)) => return reject(Reason::Listed(action)),
        Some(ListKind::Exempts) => return Ok(Decision::unlimited()),
        None => {}
    }
    let mut finder = Finder::new(requests, head);
    for pending in finder.find() {
        if finder.missing_key.is_none() {
            finder.resolve(pending).await;
        }
    }
    if let Some(error) = finder.missing_key {
        return reject(Reason::MissingKey(error));
    }
    finder.complete();
    let Ok(decision) = engine.decide(finder.charges, Purpose::Take).await else { return reject(Reason::StoreFailed) };
    if let Verdict::Deny { retry_after } = decision.verdict() {
        engine.reject(Reason::Limited { retry_after }, Some(&decision), retry_after, head);
    }
    Ok(decision)
}
