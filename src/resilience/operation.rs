//! The operations of a store that a limiter can decide without: acquiring, peeking and previewing.

use crate::decision::Decision;
use crate::store::{Charge, Store, StoreFuture};

/// Whether a decision takes its charges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    Acquire,
    Peek,
    /// Returns the decision that acquiring would make.
    Preview,
}

impl Operation {
    #[inline]
    pub(super) fn run(self, store: &dyn Store, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match self {
            Self::Acquire => store.decide(charges),
            Self::Peek => store.peek(charges),
            Self::Preview => store.preview(charges),
        }
    }
}
