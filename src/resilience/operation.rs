//! The operations of a store that a limiter can decide without: acquiring and peeking.

use crate::decision::Decision;
use crate::store::{Charge, Store, StoreFuture};

/// Whether a decision takes its charges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    Acquire,
    Peek,
}

impl Operation {
    #[inline]
    pub(super) fn run(self, store: &dyn Store, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match self {
            Self::Acquire => store.decide(charges),
            Self::Peek => store.peek(charges),
        }
    }
}
