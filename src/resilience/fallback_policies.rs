//! The policies in effect for each limit when the store does not decide.

use std::sync::Arc;

use crate::hash::KeyHasher;
use crate::limit::{Limit, Limits};
use crate::on_store_error::OnStoreError;
use crate::store::{Charge, LimitSpec};

/// The policy of each limit, by its position.
#[derive(Clone)]
pub(super) struct FallbackPolicies {
    policies: Box<[LimitPolicy]>,
    /// The hasher of the local store.
    hasher: KeyHasher,
}

#[derive(Clone)]
enum LimitPolicy {
    Reject,
    Allow,
    /// Decides locally by `share`, which is one of `parts` of the limit `whole`. Some requests have other sizes.
    DecideLocally {
        whole: Arc<LimitSpec>,
        share: Arc<LimitSpec>,
        parts: u32,
    },
}

/// The combined policy of a request's limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FallbackAction {
    Reject,
    Allow,
    DecideLocally(Quotas),
}

/// The state of a request's limits in quota mode, of which at least one must have capacity.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Quotas {
    /// The policy of one limit allows the request.
    Allowed,
    /// At least one limit's share may have capacity.
    Undecided,
    /// No limit's share can ever hold the cost.
    TooSmall,
}

impl FallbackPolicies {
    /// Takes the policies of `limits`. Limits without one have the `default`.
    pub(super) fn new(limits: &Limits, default: OnStoreError, hasher: KeyHasher) -> Self {
        let policy = |(limit, spec): (&Limit, &Arc<LimitSpec>)| match limit.store_error_policy().unwrap_or(default) {
            // A limit in shadow mode rejects nothing.
            OnStoreError::Reject if limit.is_shadow() => LimitPolicy::Allow,
            OnStoreError::Reject => LimitPolicy::Reject,
            OnStoreError::Allow => LimitPolicy::Allow,
            OnStoreError::DecideLocally(share) => {
                let parts = share.parts();
                let share = Arc::new(spec.share(parts, &hasher));
                LimitPolicy::DecideLocally { whole: spec.clone(), share, parts }
            }
        };
        Self { policies: limits.iter().map(policy).collect(), hasher }
    }

    /// Combines the policies of a request's limits.
    pub(super) fn action(&self, charges: &[Charge<'_>]) -> FallbackAction {
        let quotas = self.quotas(charges);
        let mut decides = false;
        for charge in charges {
            match self.policy(charge.spec) {
                LimitPolicy::Reject => return FallbackAction::Reject,
                LimitPolicy::Allow => {}
                LimitPolicy::DecideLocally { .. } => {
                    let another_may_have_room = charge.spec.is_quota() && quotas != Quotas::TooSmall;
                    if charge.spec.is_enforced() && !another_may_have_room && self.is_share_too_small(charge) {
                        return FallbackAction::Reject;
                    }
                    decides = true;
                }
            }
        }
        if decides { FallbackAction::DecideLocally(quotas) } else { FallbackAction::Allow }
    }

    /// Returns this process' share of a limit that it decides locally.
    pub(super) fn share(&self, spec: &Arc<LimitSpec>) -> Option<Arc<LimitSpec>> {
        match self.policy(spec) {
            LimitPolicy::DecideLocally { whole, share, .. } if Arc::ptr_eq(whole, spec) => Some(share.clone()),
            LimitPolicy::DecideLocally { parts, .. } => Some(Arc::new(spec.share(*parts, &self.hasher))),
            LimitPolicy::Reject | LimitPolicy::Allow => None,
        }
    }

    /// Lists the policies in effect for the log, such as `reject` or `allow, decide locally`.
    #[cfg(feature = "tracing")]
    pub(super) fn summary(&self) -> String {
        let names = [
            ("reject", self.policies.iter().any(|policy| matches!(policy, LimitPolicy::Reject))),
            ("allow", self.policies.iter().any(|policy| matches!(policy, LimitPolicy::Allow))),
            ("decide locally", self.policies.iter().any(|policy| matches!(policy, LimitPolicy::DecideLocally { .. }))),
        ];
        let used: Vec<&str> = names.into_iter().filter(|(_, is_used)| *is_used).map(|(name, _)| name).collect();
        used.join(", ")
    }

    /// Returns whether the limit could allow the cost, but this process' share of it never can.
    fn is_share_too_small(&self, charge: &Charge<'_>) -> bool {
        let holds = |spec: &LimitSpec| charge.cost <= spec.capacity();
        holds(charge.spec) && !self.share(charge.spec).is_some_and(|share| holds(&share))
    }

    fn quotas(&self, charges: &[Charge<'_>]) -> Quotas {
        let quotas = || charges.iter().filter(|charge| charge.spec.is_quota());
        if quotas().any(|charge| matches!(self.policy(charge.spec), LimitPolicy::Allow)) {
            Quotas::Allowed
        } else if quotas().all(|charge| self.is_share_too_small(charge)) {
            Quotas::TooSmall
        } else {
            Quotas::Undecided
        }
    }

    fn policy(&self, spec: &LimitSpec) -> &LimitPolicy {
        self.policies.get(usize::from(spec.index())).unwrap_or(&LimitPolicy::Reject)
    }
}
