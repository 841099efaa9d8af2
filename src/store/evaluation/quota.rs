//! Which limits of a request must have capacity, and quota mode: of the limits in that mode, one.

use smallvec::SmallVec;

use crate::algorithm::Availability;
use crate::charge::Charge;
use crate::decision::{Outcome, Verdict};

/// Returns whether a request is allowed: every enforced limit has capacity, and one of those in quota mode, if there
/// are any.
pub(crate) fn allows(charges: &[Charge<'_>], available: &[Availability]) -> bool {
    let mut has_quota = false;
    let mut quota_has_capacity = false;
    for (charge, availability) in charges.iter().zip(available) {
        if charge.spec.is_quota() {
            has_quota = true;
            quota_has_capacity |= availability.is_now();
        } else if charge.spec.is_enforced() && !availability.is_now() {
            return false;
        }
    }
    quota_has_capacity || !has_quota
}

/// Enforces quota mode. Each quota with capacity contributes to the decision. If none has capacity, only the one that
/// will have capacity first denies the request, so that [`Decision::retry_after`](crate::Decision::retry_after) is
/// exact.
///
/// `is_quota` yields, for each outcome, whether its limit is in quota mode.
pub(crate) fn enforce(outcomes: &mut [Outcome], is_quota: impl Iterator<Item = bool>) {
    let quotas = outcomes.iter_mut().zip(is_quota).filter_map(|(outcome, is_quota)| is_quota.then_some(outcome));
    let mut quotas: SmallVec<[&mut Outcome; 4]> = quotas.collect();
    let has_capacity = quotas.iter().any(|quota| quota.is_allowed());
    let first = quotas.iter().enumerate().min_by_key(|(_, quota)| wait(quota)).map(|(index, _)| index);
    for (index, quota) in quotas.iter_mut().enumerate() {
        quota.set_enforced(if has_capacity { quota.is_allowed() } else { Some(index) == first });
    }
}

/// Returns a key that orders denials by when they end. Those that never end come last.
fn wait(denied: &Outcome) -> (bool, Option<std::time::Duration>) {
    match denied.verdict() {
        Verdict::Allow { .. } => (false, None),
        Verdict::Deny { retry_after } => (retry_after.is_none(), retry_after),
    }
}
