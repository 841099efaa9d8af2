//! Explains what would happen to a request.

use super::find::{Finder, PendingLimits};
use super::request_limits::RequestLimits;
use crate::decision::Purpose;
use crate::explain::{Conclusion, Explanation, LimitExplanation, LimitStatus};
use crate::key::head::RequestHead;
use crate::limit::IndexedLimits;
use crate::select::ListKind;

/// Explains what would happen to a request now. Charges it if it is allowed and `purpose` is to take.
pub(crate) async fn explain(requests: &RequestLimits, head: &RequestHead<'_>, purpose: Purpose) -> Explanation {
    let (engine, limits) = (&requests.engine, &requests.engine.limits);
    let mut explained: Vec<_> = limits.iter().map(LimitExplanation::new).collect();
    let mut finder = Finder::new(requests, head);
    let conclusion = match requests.lists.find(head).0 {
        Some(ListKind::Rejects(action)) => Some(Conclusion::Listed { action }),
        Some(ListKind::Exempts) => Some(Conclusion::Exempt),
        None => {
            for limit in limits.indexed.iter().flat_map(IndexedLimits::numbers) {
                explained[limit].status = LimitStatus::NotMatched;
            }
            finder.explained = Some(&mut explained);
            for pending in finder.find() {
                match pending {
                    pending if finder.missing_key.is_none() => finder.resolve(pending).await,
                    PendingLimits::Search { index, .. } => {
                        for limit in limits.indexed[index].numbers() {
                            finder.note(limit, None, || LimitStatus::NotReached);
                        }
                    }
                    PendingLimits::Key { .. } => {}
                }
            }
            finder.missing_key.map(|error| Conclusion::MissingKey { error })
        }
    };
    finder.complete();
    let charges = finder.charges;
    let mut explanation = Explanation::new(engine, conclusion, charges, explained, purpose).await;
    explanation.lists = requests.lists.explain(head);
    explanation
}
