//! The lists of requests that are never limited or always rejected.

use std::fmt;
use std::sync::Arc;

use crate::explain::{ListExplanation, ListKind};
use crate::list::ListAction;
use crate::request::RequestHead;
use crate::when::Condition;

/// The lists of a layer, which are checked before anything else.
#[derive(Clone, Default)]
pub(super) struct Lists {
    rejected: Vec<(Arc<dyn Condition>, ListAction)>,
    exempt: Vec<Arc<dyn Condition>>,
}

/// The kind of list that a request is on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Listed {
    Rejected(ListAction),
    Exempt,
}

impl Lists {
    /// Adds requests to reject.
    pub(super) fn reject(&mut self, list: impl Condition, action: ListAction) {
        self.rejected.push((Arc::new(list), action));
    }

    /// Adds requests to exempt.
    pub(super) fn exempt(&mut self, list: impl Condition) {
        self.exempt.push(Arc::new(list));
    }

    /// Returns the kind of list that a request is on. A rejection takes precedence over an exemption. Calls `report` for
    /// each list of requests to reject that the request is on, up to the first that is not in shadow mode.
    pub(super) fn find(&self, head: &RequestHead<'_>, report: impl Fn(ListAction)) -> Option<Listed> {
        for (list, action) in &self.rejected {
            if list.may_hold(head) {
                report(*action);
                if *action != ListAction::Shadow {
                    return Some(Listed::Rejected(*action));
                }
            }
        }
        self.exempt.iter().any(|list| list.holds(head)).then_some(Listed::Exempt)
    }
}

impl Lists {
    /// Explains which lists a request is on.
    pub(super) fn explain(&self, head: &RequestHead<'_>) -> Vec<ListExplanation> {
        let rejected = self
            .rejected
            .iter()
            .map(|(list, action)| ListExplanation::new(ListKind::Rejects(*action), &**list, list.may_hold(head)));
        let exempt = self.exempt.iter().map(|list| ListExplanation::new(ListKind::Exempts, &**list, list.holds(head)));
        rejected.chain(exempt).collect()
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rejected, {} exempt", self.rejected.len(), self.exempt.len())
    }
}
