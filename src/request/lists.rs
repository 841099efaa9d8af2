//! Lists of requests that are rejected, or exempt from all limits.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::explain::ListExplanation;
use crate::key::head::RequestHead;
use crate::select::{Condition, ListAction, ListKind};

/// The lists of a layer, which are checked before anything else: those that reject requests, then those that exempt
/// them.
#[derive(Clone, Default)]
pub(crate) struct Lists(Vec<(ListKind, Arc<dyn Condition>)>);

impl Lists {
    /// Adds a list.
    pub(crate) fn add(&mut self, kind: ListKind, list: impl Condition) {
        self.0.push((kind, Arc::new(list)));
        self.0.sort_by_key(|(kind, _)| *kind == ListKind::Exempts);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the kind of list that a request is on. A rejection takes precedence over an exemption. Also returns the
    /// lists of requests to reject that the request is on, up to the first that is not in shadow mode.
    pub(crate) fn find(&self, head: &RequestHead<'_>) -> (Option<ListKind>, SmallVec<[ListAction; 1]>) {
        let mut matched = SmallVec::new();
        for (kind, _) in self.0.iter().filter(|list| is_on(list, head)) {
            if let ListKind::Rejects(action) = kind {
                matched.push(*action);
            }
            if *kind != ListKind::Rejects(ListAction::Shadow) {
                return (Some(*kind), matched);
            }
        }
        (None, matched)
    }

    /// Explains which lists a request is on.
    pub(crate) fn explain(&self, head: &RequestHead<'_>) -> Vec<ListExplanation> {
        let explain = |list: &(ListKind, Arc<dyn Condition>)| ListExplanation {
            kind: list.0,
            condition: list.1.describe(),
            matches: is_on(list, head),
        };
        self.0.iter().map(explain).collect()
    }
}

/// Returns whether a request is on a list. An ambiguous request may be rejected, but is not exempt.
fn is_on((kind, list): &(ListKind, Arc<dyn Condition>), head: &RequestHead<'_>) -> bool {
    match kind {
        ListKind::Rejects(_) => list.may_hold(head),
        ListKind::Exempts => list.holds(head),
    }
}
