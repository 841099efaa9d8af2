//! Collects the decisions of a request's slots.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::store::evaluation::quota;
use crate::store::redis::error::Fault;
use crate::store::{Charge, LimitSpec};
use crate::time::Timestamp;

/// An owned [`Charge`], and its position in the request.
pub(super) struct SlotCharge {
    pub(super) position: usize,
    /// The limit is in quota mode, and limits of other slots are, too. The slot decides it in shadow mode.
    pub(super) is_cross_slot_quota: bool,
    pub(super) spec: Arc<LimitSpec>,
    pub(super) key: KeyHash,
    pub(super) cost: u64,
}

/// The latest outcomes of a request's charges.
pub(super) struct Report {
    /// The latest instant of all slots.
    at: Timestamp,
    /// The outcomes by position.
    outcomes: Vec<(usize, Outcome)>,
    /// The limits that are overridden.
    overridden: Vec<Arc<LimitSpec>>,
}

impl SlotCharge {
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }
}

impl Report {
    /// Creates a report of the slots' decisions.
    pub(super) fn new(slots: &[Vec<SlotCharge>], decisions: Vec<Result<Decision, Fault>>) -> Result<Self, Fault> {
        let mut report = Self { at: Timestamp::EPOCH, outcomes: Vec::new(), overridden: Vec::new() };
        for (slot, decision) in slots.iter().zip(decisions) {
            report.record(slot, decision?);
        }
        report.outcomes.sort_by_key(|(position, _)| *position);
        Ok(report)
    }

    /// Replaces the outcomes of a slot.
    pub(super) fn record(&mut self, slot: &[SlotCharge], decision: Decision) {
        self.at = self.at.max(decision.at());
        self.overridden.retain(|spec| !slot.iter().any(|charge| charge.spec.index() == spec.index()));
        self.overridden.extend_from_slice(decision.resized());
        for (charge, outcome) in slot.iter().zip(decision.outcomes()) {
            match self.outcomes.iter_mut().find(|(position, _)| *position == charge.position) {
                Some((_, before)) => before.clone_from(outcome),
                None => self.outcomes.push((charge.position, outcome.clone())),
            }
        }
    }

    /// Returns whether all limits are available, and of those in quota mode at least one.
    pub(super) fn is_allowed(&self, slots: &[Vec<SlotCharge>]) -> bool {
        let is_available = |(_, outcome): &&(usize, Outcome)| outcome.is_allowed();
        let mut quotas = self.outcomes.iter().filter(|(position, _)| is_quota_cross_slot(slots, *position)).peekable();
        let quotas_allow = quotas.peek().is_none() || quotas.any(|outcome| is_available(&outcome));
        quotas_allow && !self.outcomes.iter().any(|(_, outcome)| outcome.denies())
    }

    pub(super) fn decision(self, slots: &[Vec<SlotCharge>], charge: bool) -> Decision {
        let quotas: Vec<bool> =
            self.outcomes.iter().map(|(position, _)| is_quota_cross_slot(slots, *position)).collect();
        let mut outcomes: SmallVec<[Outcome; 1]> = self.outcomes.into_iter().map(|(_, outcome)| outcome).collect();
        quota::enforce(&mut outcomes, quotas.into_iter());
        Decision::of(self.at, charge, outcomes).with_resized(&self.overridden)
    }
}

/// Returns whether the charge at `position` is of a limit in quota mode that shares its request with limits in quota
/// mode in other slots.
fn is_quota_cross_slot(slots: &[Vec<SlotCharge>], position: usize) -> bool {
    let charge = slots.iter().flatten().find(|charge| charge.position == position);
    charge.is_some_and(|charge| charge.is_cross_slot_quota)
}
