//! A limit with overage.

use super::{Exact, Room, Standing};
use crate::record::Record;

/// A limit that tells what is left of `limit`, and decides by `ceiling`: the same, with more room. What
/// a key remembers depends on neither's capacity.
pub(crate) struct Soft<'a, S> {
    pub(crate) limit: &'a dyn Exact<S>,
    pub(crate) ceiling: &'a dyn Exact<S>,
}

impl<S> Exact<S> for Soft<'_, S> {
    fn peek(&self, state: &S, now: u64, cost: u64) -> Room {
        match self.ceiling.peek(state, now, cost) {
            Room::Now { delay, .. } => Room::Now { delay, over: !self.limit.peek(state, now, cost).is_now() },
            denied => denied,
        }
    }

    fn commit(&self, state: &mut S, now: u64, cost: u64) -> Record {
        self.ceiling.commit(state, now, cost)
    }

    fn standing(&self, state: &S, now: u64) -> Standing {
        self.limit.standing(state, now)
    }

    fn adopt(&self, state: &mut S, now: u64) {
        self.ceiling.adopt(state, now);
    }

    fn refund(&self, state: &mut S, mark: Record, now: u64, cost: u64) {
        self.ceiling.refund(state, mark, now, cost);
    }
}
