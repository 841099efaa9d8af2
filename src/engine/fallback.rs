//! Decides requests that the store did not decide, by the policies of their limits.

#[cfg(feature = "tracing")]
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use crate::decision::{Charge, Charges, DecidedBy, Decision, Outcome, Purpose, Veto};
use crate::key::hash::KeyHasher;
use crate::limit::{Limit, Limits, OnStoreError};
use crate::recorder::Fallback;
use crate::store::{MemoryStore, Store, StoreFuture};

/// The capacity of the local store: 100,000 keys are a few MB.
const MAX_KEYS: usize = 100_000;

/// The policies for requests that the store does not decide, and the memory in which this process decides some of them.
/// Clones share the memory.
#[derive(Clone)]
pub(super) struct FallbackPolicies {
    /// That of limits without one of their own.
    policy: OnStoreError,
    /// Hashes the hashes of keys again with a random secret, because an attacker who knows the fleet's secret could
    /// otherwise construct colliding keys for the local store.
    hasher: KeyHasher,
    /// The memory in which limits with the policy `DecideLocally` are decided, created when it is first needed.
    memory: Arc<OnceLock<MemoryStore>>,
}

impl FallbackPolicies {
    pub(super) fn new(policy: OnStoreError) -> Self {
        Self { policy, hasher: KeyHasher::random(), memory: Arc::default() }
    }

    /// Applies the policies to a request. The decision is `None` if the request is rejected.
    pub(super) fn decide(
        &self,
        limits: &Limits,
        purpose: Purpose,
        mut charges: Charges,
    ) -> (Fallback, Option<Decision>) {
        // The store may have answered some of them before it failed, or have given them the size of an override.
        charges.ask_again();
        charges.want_no_blocks();
        let quotas = || charges.iter().filter(|outcome| outcome.veto == Veto::Quota);
        let are_quotas_allowed = quotas().any(|outcome| self.policy(limits, outcome) == OnStoreError::Allow);
        let may_quotas_allow = are_quotas_allowed || quotas().any(|outcome| !self.is_share_too_small(limits, outcome));
        let is_rejected = |charge: &Outcome| match (self.policy(limits, charge), charge.veto) {
            (OnStoreError::Reject, _) => true,
            (OnStoreError::Allow, _) | (_, Veto::Shadow) => false,
            (_, Veto::Quota) if may_quotas_allow => false,
            _ => self.is_share_too_small(limits, charge),
        };
        if charges.iter().any(is_rejected) {
            return (Fallback::Rejected, None);
        }
        charges.retain(|outcome| matches!(self.policy(limits, outcome), OnStoreError::DecideLocally(_)));
        if charges.is_empty() {
            return (Fallback::Allowed, Some(Decision::unlimited()));
        }
        let mut shares = self.shares(limits, &charges);
        if are_quotas_allowed {
            shares.iter_mut().filter(|share| share.veto == Veto::Quota).for_each(|share| share.set_veto(Veto::Shadow));
        }
        let memory = self.memory.get_or_init(|| MemoryStore::new().max_keys(MAX_KEYS));
        let at = memory.decide_now(&mut shares, purpose);
        charges.iter_mut().zip(&*shares).for_each(|(outcome, share)| outcome.take_share(share));
        let decision = Decision::of(at, DecidedBy::Local, purpose == Purpose::Take, limits.store, charges);
        (Fallback::DecidedLocally { allowed: decision.is_allowed() }, Some(decision))
    }

    /// Refunds costs that were decided here.
    pub(super) fn refund(&self, limits: &Limits, charges: &[Outcome]) {
        if let Some(memory) = self.memory.get() {
            let share = |outcome: &Outcome| {
                let mut charged = outcome.clone();
                charged.charge = self.share(limits, outcome).filter(|share| outcome.is_of_share(share))?;
                Some(charged)
            };
            ready(memory.refund(&Charges::of(charges.iter().filter_map(share))));
        }
    }

    /// Resets keys, as far as they were decided here.
    pub(super) fn reset(&self, limits: &Limits, charges: &[Outcome]) {
        if let Some(memory) = self.memory.get() {
            ready(memory.reset(&self.shares(limits, charges)));
        }
    }

    /// Lists for the log the first five limits, which tell the limiter apart from others, and the policies in effect,
    /// such as `reject` or `allow, decide locally`.
    #[cfg(feature = "tracing")]
    pub(super) fn describe(&self, limits: &Limits) -> [String; 2] {
        let name = |limit| match self.policy_of(limit) {
            OnStoreError::Reject => "reject",
            OnStoreError::Allow => "allow",
            OnStoreError::DecideLocally(_) => "decide locally",
        };
        let policies: BTreeSet<&str> = limits.iter().map(name).collect();
        let names = limits.iter().map(Limit::name).take(5);
        [names.collect(), Vec::from_iter(policies)].map(|names: Vec<&str>| names.join(", "))
    }

    fn policy(&self, limits: &Limits, charge: &Charge) -> OnStoreError {
        limits.get(charge.limit()).map_or(OnStoreError::Reject, |limit| self.policy_of(limit))
    }

    fn policy_of(&self, limit: &Limit) -> OnStoreError {
        match limit.on_store_error.unwrap_or(self.policy) {
            // A limit in shadow mode rejects nothing.
            OnStoreError::Reject if limit.is_shadow() => OnStoreError::Allow,
            policy => policy,
        }
    }

    /// Returns this process's shares of the limits that it decides.
    fn shares(&self, limits: &Limits, charges: &[Outcome]) -> Charges {
        let share = |outcome: &Outcome| {
            let mut share = outcome.unanswered();
            share.charge = self.share(limits, outcome)?;
            Some(share)
        };
        Charges::of(charges.iter().filter_map(share))
    }

    fn share(&self, limits: &Limits, charge: &Charge) -> Option<Charge> {
        match self.policy(limits, charge) {
            OnStoreError::DecideLocally(share) => Some(charge.share(share.parts, &self.hasher)),
            OnStoreError::Reject | OnStoreError::Allow => None,
        }
    }

    /// Returns whether the limit could allow the cost, but this process's share of it never can.
    fn is_share_too_small(&self, limits: &Limits, charge: &Charge) -> bool {
        let holds = |charge: &Charge| charge.cost() <= charge.algorithm().hard_capacity();
        holds(charge) && !self.share(limits, charge).is_some_and(|share| holds(&share))
    }
}

/// Returns the answer of a memory store.
fn ready<T>(answer: StoreFuture<T>) -> T {
    match answer.into_ready() {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => unreachable!("a memory store answers at once and never fails"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{FixedWindow, Penalty, SlidingLog};
    use crate::decision::OutcomeKind;
    use crate::key::hash::KeyHash;
    use crate::limit::Share;

    /// Limits whose store has failed.
    struct Local {
        limits: Limits,
        policies: FallbackPolicies,
    }

    impl Local {
        fn of(limits: Vec<Limit>, policy: OnStoreError) -> Self {
            let mut limits = Limits::new(limits).unwrap();
            limits.set_store(&MemoryStore::new(), false, true);
            Self { limits, policies: FallbackPolicies::new(policy) }
        }

        fn new(limits: Vec<Limit>) -> Self {
            Self::of(limits, OnStoreError::DecideLocally(Share::whole()))
        }

        fn decide(&self, key: KeyHash, cost: u64) -> (Fallback, Option<Decision>) {
            self.policies.decide(&self.limits, Purpose::Take, self.limits.charges_of(key, cost))
        }
    }

    /// A permit may still take that much.
    #[test]
    fn what_is_available_after_a_local_decision_is_the_rest_of_the_share_with_its_overage() {
        let half = OnStoreError::DecideLocally(Share::one_of(2));
        let local = Local::new(vec![Limit::new("soft", FixedWindow::per_day(10)).soft(20).on_store_error(half)]);
        let key = KeyHasher::with_secret([0; 16]).hash(b"key");
        let (_, decision) = local.decide(key, 2);
        assert_eq!(decision.unwrap().outcomes()[0].available(), 5 + 1 - 2);
    }

    #[test]
    fn a_local_settlement_can_leave_a_debt_of_the_share() {
        let half = OnStoreError::DecideLocally(Share::one_of(2));
        let local = Local::new(vec![Limit::new("window", FixedWindow::per_day(10)).debt(100).on_store_error(half)]);
        let key = KeyHasher::with_secret([0; 16]).hash(b"key");
        let settle = |cost| {
            let mut charges = local.limits.charges_of(key, cost);
            local.limits.allow_debts(&mut charges);
            local.policies.decide(&local.limits, Purpose::Take, charges).1.unwrap().outcomes()[0].clone()
        };
        let [within, beyond] = [settle(4), settle(4)].map(|outcome| (outcome.kind(), outcome.debt()));
        assert_eq!((within, beyond), ((OutcomeKind::Allowed, 0), (OutcomeKind::Debt, 3)));
        assert_eq!(settle(4).available(), 2);
        let (_, denied) = local.decide(key, 1);
        assert_eq!(denied.unwrap().outcomes()[0].debt(), 3);
    }

    #[test]
    fn an_answer_that_the_store_gave_before_it_failed_does_not_count() {
        let local = Local::new(vec![Limit::new("window", FixedWindow::per_day(10)).overridable()]);
        let mut charges = local.limits.charges_of(KeyHasher::random().hash(b"key"), 2);
        charges[0].apply_override(&FixedWindow::per_day(1).into());
        charges[0].set_enforced(false);
        let (_, decision) = local.policies.decide(&local.limits, Purpose::Take, charges);
        let decision = decision.unwrap();
        let [outcome] = decision.outcomes() else { panic!("{decision:?}") };
        assert_eq!((outcome.algorithm().capacity(), outcome.remaining(), outcome.is_enforced()), (10, 8, true));
    }

    #[test]
    fn a_local_denial_of_a_request_without_strikes_begins_no_lockout() {
        let penalty = Penalty::after(1, Duration::from_secs(60));
        let local = Local::new(vec![Limit::new("window", FixedWindow::per_day(1)).penalty(penalty)]);
        for makes_strikes in [false, true] {
            let mut charges = local.limits.charges_of(KeyHasher::with_secret([0; 16]).hash(b"key"), 2);
            if !makes_strikes {
                charges.disable_strikes();
            }
            let (_, decision) = local.policies.decide(&local.limits, Purpose::Take, charges);
            assert_eq!(decision.unwrap().is_locked_out(), makes_strikes);
        }
    }

    /// NexaSphere#1056: the map that replaced a failing store grew until no memory was left.
    #[test]
    fn a_flood_of_keys_during_an_outage_takes_bounded_memory() {
        let limits = vec![Limit::new("window", FixedWindow::per_day(10)), Limit::new("log", SlidingLog::per_day(10))];
        let local = Local::new(limits);
        let mut most = 0;
        for number in 0..120_000_u64 {
            let key = KeyHasher::with_secret([0; 16]).hash(&number.to_le_bytes());
            let (to, decision) = local.decide(key, 1);
            assert_eq!(to, Fallback::DecidedLocally { allowed: true });
            drop(decision);
            if number.is_multiple_of(10_000) {
                most = most.max(local.policies.memory.get().unwrap().bytes());
            }
        }
        let keys = local.policies.memory.get().unwrap().keys();
        assert!(keys <= MAX_KEYS, "{keys} keys");
        assert!(keys > MAX_KEYS / 2, "{keys} keys");
        assert!(most < 20 << 20, "{most} bytes");
    }

    #[test]
    fn memory_is_allocated_when_first_needed() {
        let local = Local::new(vec![Limit::new("window", FixedWindow::per_day(10))]);
        let charges = local.limits.charges_of(KeyHasher::random().hash(b"key"), 1);
        local.policies.reset(&local.limits, &charges);
        local.policies.refund(&local.limits, &charges);
        assert!(local.policies.memory.get().is_none());
        let _ = local.policies.decide(&local.limits, Purpose::Peek, charges);
        assert!(local.policies.memory.get().is_some());
    }

    #[test]
    fn a_shadow_limit_denies_nothing_locally() {
        let limits = vec![
            Limit::new("window", FixedWindow::per_day(10)),
            Limit::new("shadow", FixedWindow::per_day(2)).shadow(),
        ];
        let local = Local::new(limits);
        let key = KeyHasher::random().hash(b"key");
        let decide = || {
            let (to, decision) = local.decide(key, 1);
            (to, decision.map(|decision| decision.is_allowed()))
        };
        for request in 0..10 {
            assert_eq!(decide(), (Fallback::DecidedLocally { allowed: true }, Some(true)), "request {request}");
        }
        let denied = (Fallback::DecidedLocally { allowed: false }, Some(false));
        assert_eq!(decide(), denied, "the enforced limit denies");
    }

    #[test]
    fn quotas_deny_locally_only_if_none_has_room() {
        let quota = |name, tokens| Limit::new(name, FixedWindow::per_day(tokens)).quota_mode();
        let key = KeyHasher::random().hash(b"key");
        let decide = |limits: Vec<Limit>, costs: &[u64]| -> Vec<bool> {
            let local = Local::of(limits, OnStoreError::DecideLocally(Share::one_of(4)));
            let decided =
                costs.iter().map(|&cost| local.decide(key, cost).1.is_some_and(|decision| decision.is_allowed()));
            decided.collect()
        };
        // A cost that no share of the first can hold fits the second, until that is used up.
        assert_eq!(decide(vec![quota("own", 4), quota("team", 16)], &[2, 2, 2]), [true, true, false]);
        // A cost that no share can hold is rejected.
        assert_eq!(decide(vec![quota("own", 4), quota("team", 4)], &[2]), [false]);
        // A quota whose policy allows requests has room for every cost.
        let team = quota("team", 16).on_store_error(OnStoreError::Allow);
        assert_eq!(decide(vec![quota("own", 4), team], &[1, 1, 2]), [true; 3]);
    }

    /// An enforced limit rejects a cost that fits the limit but not the share.
    #[test]
    fn a_shadow_limit_rejects_nothing_under_any_policy() {
        let key = KeyHasher::random().hash(b"key");
        for (policy, expected) in [
            (OnStoreError::Reject, Fallback::Allowed),
            (OnStoreError::Allow, Fallback::Allowed),
            (OnStoreError::DecideLocally(Share::one_of(2)), Fallback::DecidedLocally { allowed: true }),
        ] {
            let local = Local::of(vec![Limit::new("shadow", FixedWindow::per_day(2)).shadow()], policy);
            let (to, decision) = local.decide(key, 2);
            assert_eq!(to, expected, "{policy:?}");
            assert!(decision.is_some_and(|decision| decision.is_allowed()), "{policy:?}");
        }
    }

    #[test]
    fn each_local_store_hashes_keys_by_a_secret_of_its_own() {
        let [one, other] = [(), ()].map(|()| Local::new(vec![Limit::new("window", FixedWindow::per_day(10))]));
        let charge = one.limits.charges_of(KeyHasher::with_secret([0; 16]).hash(b"key"), 1)[0].charge;
        let [one, other] = [one, other].map(|local| local.policies.share(&local.limits, &charge).unwrap().key());
        assert_ne!(one, charge.key());
        assert_ne!(one, other);
    }
}
