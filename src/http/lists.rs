//! The lists of requests that are never limited or always rejected.

use std::fmt;
use std::sync::Arc;

use crate::explain::{ListExplanation, ListKind};
use crate::key::heads::RequestHead;
use crate::list::ListAction;
use crate::when::Condition;

/// The lists of a layer, which are checked before anything else: those that reject requests, then those that exempt
/// them.
#[derive(Clone, Default)]
pub(super) struct Lists(Vec<(ListKind, Arc<dyn Condition>)>);

impl Lists {
    /// Adds a list.
    pub(super) fn add(&mut self, kind: ListKind, list: impl Condition) {
        self.0.push((kind, Arc::new(list)));
        self.0.sort_by_key(|(kind, _)| *kind == ListKind::Exempts);
    }

    /// Returns the kind of list that a request is on. A rejection takes precedence over an exemption. Calls `report` for
    /// each list of requests to reject that the request is on, up to the first that is not in shadow mode.
    pub(super) fn find(&self, head: &RequestHead<'_>, report: impl Fn(ListAction)) -> Option<ListKind> {
        for (kind, _) in self.0.iter().filter(|list| is_on(list, head)) {
            if let ListKind::Rejects(action) = kind {
                report(*action);
            }
            if *kind != ListKind::Rejects(ListAction::Shadow) {
                return Some(*kind);
            }
        }
        None
    }

    /// Explains which lists a request is on.
    pub(super) fn explain(&self, head: &RequestHead<'_>) -> Vec<ListExplanation> {
        self.0.iter().map(|list| ListExplanation::new(list.0, &*list.1, is_on(list, head))).collect()
    }
}

/// Returns whether a request is on a list. An ambiguous request may be rejected, but is not exempt.
fn is_on((kind, list): &(ListKind, Arc<dyn Condition>), head: &RequestHead<'_>) -> bool {
    match kind {
        ListKind::Rejects(_) => list.may_hold(head),
        ListKind::Exempts => list.holds(head),
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(kind, _)| kind)).finish()
    }
}
