//! Who is never limited, and who is always refused.

use std::fmt;
use std::sync::Arc;

use crate::list::ListAction;
use crate::request::RequestHead;
use crate::when::Condition;

/// What is asked before anything else.
#[derive(Clone, Default)]
pub(super) struct Lists {
    refused: Vec<(Arc<dyn Condition>, ListAction)>,
    exempt: Vec<Arc<dyn Condition>>,
}

/// What they say of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Listed {
    Refused(ListAction),
    Exempt,
}

impl Lists {
    pub(super) fn refuse(&mut self, list: impl Condition, refusal: ListAction) {
        self.refused.push((Arc::new(list), refusal));
    }

    pub(super) fn exempt(&mut self, list: impl Condition) {
        self.exempt.push(Arc::new(list));
    }

    #[inline]
    pub(super) fn are_empty(&self) -> bool {
        self.refused.is_empty() && self.exempt.is_empty()
    }

    /// What they say of a request, if anything. Whoever is on lists of both kinds is refused; `tell` is
    /// told of each list that refuses, until one does so in earnest.
    pub(super) fn find(&self, head: &RequestHead<'_>, tell: impl Fn(ListAction)) -> Option<Listed> {
        for (list, refusal) in &self.refused {
            if list.may_hold(head) {
                tell(*refusal);
                if *refusal != ListAction::Shadow {
                    return Some(Listed::Refused(*refusal));
                }
            }
        }
        self.exempt.iter().any(|list| list.holds(head)).then_some(Listed::Exempt)
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused, {} exempt", self.refused.len(), self.exempt.len())
    }
}
