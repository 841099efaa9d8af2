//! Previews: decisions that are evaluated on copies of the states, so that nothing changes.

use smallvec::SmallVec;

use super::{KeyStates, Task, decide};
use crate::algorithm::{Availability, CompactState, State, StoredKey};
use crate::charge::Charge;
use crate::decision::Decision;
use crate::time::Timestamp;

/// Copies of the states of a request's keys.
#[derive(Clone, Debug)]
pub(crate) struct CopiedStates(pub(crate) SmallVec<[StoredKey; 1]>);

/// Decides a request as [`decide`] would now, including what would be left, and changes nothing.
pub(crate) fn preview(mut copies: CopiedStates, charges: &[Charge<'_>], at: Timestamp) -> Decision {
    decide(&mut copies, charges, at, Task::Decide).without_charges()
}

impl KeyStates for CopiedStates {
    fn state(&mut self, charge: usize) -> &mut dyn State {
        self.0[charge].state.as_state_mut()
    }

    fn penalty(&mut self, charge: usize) -> CompactState {
        self.0[charge].penalty
    }

    fn store(&mut self, _charge: usize, _remaining: u64) {}

    fn store_penalty(&mut self, charge: usize, penalty: CompactState, _availability: Availability) -> bool {
        self.0[charge].penalty = penalty;
        true
    }
}
