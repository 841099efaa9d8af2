//! Decisions about requests, and their parts, wherever the states of keys are stored.

mod answer;
mod cell;

use std::mem;
use std::ops::Deref;
use std::time::Duration;

pub use self::cell::{Cell, Verdict, Veto};
pub(crate) use self::cell::{Cells, Texts, UNANSWERED};
use crate::algorithm::KeyState;
use crate::time::{Clock, SystemClock, Timestamp};

/// The decision on one request, by all limits that apply to it, at one instant.
#[derive(Clone, Debug)]
#[must_use = "it may deny the request: check `is_allowed`, or use a method that returns an error for a denial"]
pub struct Decision {
    at: Timestamp,
    by: DecidedBy,
    /// Whether the request was charged if it was allowed.
    takes: bool,
    outcomes: Cells,
}

impl Decision {
    /// Creates the decision that a limiter makes of a store's answer at an instant, for stores that wrap others and
    /// report their decisions.
    pub fn new(at: Timestamp, cells: impl IntoIterator<Item = Cell>) -> Self {
        let mut cells = cells.into_iter().collect();
        Self::merge_penalties(&mut cells);
        Self::of(at, DecidedBy::Store, false, cells)
    }

    /// Creates the decision of answered cells. Their penalties must be [merged](Self::merge_penalties) already. The
    /// request is charged if it is allowed and `takes`.
    #[inline(always)]
    pub(crate) const fn of(at: Timestamp, by: DecidedBy, takes: bool, outcomes: Cells) -> Self {
        Self { at, by, takes, outcomes }
    }

    /// Adds the answers of penalties to those of their limits. Not a part of [`of`](Self::of), because cells are then
    /// moved once instead of three times, which saves 70 instructions.
    #[inline]
    pub(crate) fn merge_penalties(cells: &mut Cells) {
        if cells.iter().any(Cell::is_of_penalty) {
            merge(cells);
        }
    }

    /// Creates the decision about a request to which no limit applies, or about which the store did not decide.
    pub(crate) fn unlimited() -> Self {
        Self::of(SystemClock::new().now(), DecidedBy::Unlimited, false, Cells::new())
    }

    /// Returns a copy that cannot be refunded.
    pub(crate) fn without_charges(&self) -> Self {
        Self { takes: false, ..self.clone() }
    }

    /// Keeps the outcomes of some limits only.
    pub(crate) fn only(mut self, is_kept: impl Fn(usize) -> bool) -> Self {
        self.outcomes.retain(|outcome| is_kept(outcome.limit()));
        self
    }

    /// Returns the part of the limiter that decided.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.by
    }

    /// Returns the instant of the decision: on the clock of the store, or on the system clock if no limit applied or
    /// this process decided because the store failed. In memory, on the wall clock if a calendar window applied.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the combined verdict of all limits that are enforced.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let enforced = self.outcomes.iter().filter(|outcome| outcome.is_enforced());
        enforced.map(Cell::verdict).reduce(Verdict::and).unwrap_or(Verdict::NOW)
    }

    /// Returns whether every limit that is enforced had capacity.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        !self.outcomes.iter().any(Cell::denies)
    }

    /// Returns whether the request was denied because one of its keys is locked out by a [`Penalty`](crate::Penalty),
    /// including the request that began the lockout.
    #[must_use]
    pub fn is_locked_out(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.denies() && outcome.is_locked_out())
    }

    /// Returns whether the request was charged.
    pub(crate) fn is_charged(&self) -> bool {
        self.takes && self.is_allowed()
    }

    /// Returns how long an allowed request waits before it proceeds: the longest delay of all limits. Zero for a denied
    /// request.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.verdict().delay()
    }

    /// Returns the shortest wait after which a denied request would be allowed if no other request arrived: the longest
    /// of the limits that deny it. `None` if the request was allowed, or if waiting cannot help.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() { None } else { self.verdict().retry_after() }
    }

    /// Returns the outcome of each limit, in the order of the limits.
    #[must_use]
    #[inline]
    pub fn outcomes(&self) -> &[Cell] {
        &self.outcomes
    }

    pub(crate) fn outcomes_mut(&mut self) -> &mut [Cell] {
        &mut self.outcomes
    }

    /// Returns the receipt of the request's charges, which is empty if it was not charged.
    pub fn into_receipt(mut self) -> Receipt {
        let is_charged = self.is_charged();
        self.outcomes.retain(|outcome| is_charged && outcome.cost > 0 && outcome.is_allowed());
        Receipt { by: self.by, charged: self.outcomes }
    }
}

/// The part of the limiter that decided a request. See [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process, by its share of the limits, because the store failed.
    Local,
    /// Nothing: the store failed and the policy allows the request without counting it, or no limit applies to it. The
    /// decision has no outcomes.
    Unlimited,
}

/// A [`Decision`] that allows the request. There is nothing to check, so it need not be used.
///
/// Returned by methods that return an error for a denial, such as [`Limiter::try_acquire`](crate::Limiter::try_acquire)
/// and [`Limiter::wait`](crate::Limiter::wait). It dereferences to the decision.
#[derive(Clone, Debug)]
pub struct AllowedDecision(pub(crate) Decision);

impl AllowedDecision {
    /// Returns the receipt of the request's charges. See [`Decision::into_receipt`].
    pub fn into_receipt(self) -> Receipt {
        self.0.into_receipt()
    }
}

impl Deref for AllowedDecision {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

/// The record of the charges of a decision. It can be refunded exactly and once.
///
/// A refund returns only the part of the charge that still counts: it never leaves more tokens than the limit has, and
/// never affects a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped refunds nothing: pass it to `refund`"]
pub struct Receipt {
    /// The part of the limiter that made the charge.
    pub(crate) by: DecidedBy,
    pub(crate) charged: Cells,
}

impl Receipt {
    /// Returns whether there is nothing to refund.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged.is_empty()
    }
}

#[cold]
fn merge(cells: &mut Cells) {
    for index in (1..cells.len()).rev() {
        if cells[index].is_of_penalty() {
            let penalty = cells.remove(index);
            cells[index - 1].restrict(&penalty);
        }
    }
}

/// The purpose of a decision.
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

/// Decides a request at one instant, which `now` returns on the clock of a cell: looks at the states of all its keys, then
/// takes all costs or none, in `states`, which are those of the cells in order.
#[inline]
pub(crate) fn decide(cells: &mut [Cell], states: &mut [KeyState], now: impl Fn(&Cell) -> u64, purpose: Purpose) {
    for (cell, state) in cells.iter_mut().zip(&*states) {
        cell.peek(state, now(cell));
    }
    complete(cells, purpose, |cells, index, charges| cells[index].complete(&mut states[index], charges));
}

/// Decides a request after a [`peek`](Cell::peek) at all its states. Calls `complete` with the position of each cell, and
/// whether it is charged.
#[inline(always)]
pub(crate) fn complete(cells: &mut [Cell], purpose: Purpose, mut complete: impl FnMut(&mut [Cell], usize, bool)) {
    let takes = purpose != Purpose::Peek;
    let is_allowed = takes && allows(cells);
    // Whether the cell before, which is that of the limit of a penalty, has no capacity.
    let mut is_denied = false;
    for index in 0..cells.len() {
        let cell = &cells[index];
        let is_strike = takes && mem::replace(&mut is_denied, !cell.is_allowed()) && cell.makes_strikes;
        let charges = cell.is_allowed() && if cell.is_of_penalty() { is_strike } else { is_allowed };
        complete(cells, index, charges);
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
