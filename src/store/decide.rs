//! The decision on a request, from the states of its keys, wherever these are stored.

use crate::algorithm::KeyState;
use crate::store::decision::{Cell, Veto};

/// What a store does with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// Decides, and takes the costs of an allowed request from all limits or from none.
    Take,
    /// Decides, and changes nothing.
    Peek,
    /// Answers as for [`Take`](Self::Take), but changes nothing: outcomes report what would be left after the request,
    /// and a lockout that it would begin. [Explanations](crate::explain) use it. A store may answer as for
    /// [`Peek`](Self::Peek), so that they report what is left before the request.
    Preview,
}

/// Decides a request at the instant `now`: looks at the states of all its keys, then takes all costs or none, in
/// `states`, which are those of the cells in order.
#[inline]
pub(crate) fn decide(cells: &mut [Cell], states: &mut [KeyState], now: u64, purpose: Purpose) {
    for (cell, state) in cells.iter_mut().zip(&*states) {
        cell.peek(state, now);
    }
    let takes = purpose != Purpose::Peek;
    let is_allowed = takes && allows(cells);
    // Whether the limit before the cell of a penalty denies.
    let mut is_denied = false;
    for (cell, state) in cells.iter_mut().zip(states) {
        let is_strike = takes && is_denied && cell.makes_strikes;
        is_denied = !cell.is_allowed();
        let charges = !is_denied && if cell.is_of_penalty() { is_strike } else { is_allowed };
        cell.complete(state, now, charges);
    }
    enforce_quotas(cells);
}

/// Returns whether a request is allowed: every enforced limit has capacity, and one of those in quota mode, if there
/// are any.
#[inline]
pub(crate) fn allows(cells: &[Cell]) -> bool {
    let (mut has_quota, mut quota_has_capacity) = (false, false);
    for cell in cells {
        match cell.veto {
            Veto::Enforced if !cell.is_allowed() => return false,
            Veto::Enforced | Veto::Shadow => {}
            Veto::Quota => (has_quota, quota_has_capacity) = (true, quota_has_capacity || cell.is_allowed()),
        }
    }
    quota_has_capacity || !has_quota
}

/// Enforces quota mode. Each quota with capacity contributes to the decision. If none has capacity, only the one that
/// will have capacity first denies the request, so that [`Decision::retry_after`](crate::Decision::retry_after) is
/// exact.
#[inline]
pub(crate) fn enforce_quotas(cells: &mut [Cell]) {
    let quotas = || cells.iter().enumerate().filter(|(_, cell)| cell.veto == Veto::Quota);
    let Some((first, _)) = quotas().min_by_key(|(_, cell)| cell.wait) else { return };
    let has_capacity = quotas().any(|(_, cell)| cell.is_allowed());
    for (index, cell) in cells.iter_mut().enumerate().filter(|(_, cell)| cell.veto == Veto::Quota) {
        cell.set_enforced(if has_capacity { cell.is_allowed() } else { index == first });
    }
}
