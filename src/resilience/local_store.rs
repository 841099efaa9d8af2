//! The memory store that decides while the limiter's store fails.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::fallback_policies::{FallbackAction, FallbackPolicies, Quotas};
use super::operation::Operation;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::{KeyHash, KeyHasher};
use crate::limit::Limits;
use crate::on_store_error::OnStoreError;
use crate::recorder::Fallback;
use crate::store::{Charge, LimitSpec, MemoryStore, Refund, Store, StoreFuture};

/// The capacity of the local store: 100,000 keys are a few MB.
const MAX_KEYS: usize = 100_000;

/// Applies the fallback policies, and decides limits with the policy `DecideLocally` in memory.
#[derive(Clone)]
pub(super) struct LocalStore {
    pub(super) policies: FallbackPolicies,
    /// Hashes the hashes of keys again with a random secret, because an attacker who knows the fleet's secret could
    /// otherwise construct colliding keys for this table.
    hasher: KeyHasher,
    /// Created when it is first needed. Clones of a limiter share it.
    memory: Arc<OnceLock<MemoryStore>>,
}

impl LocalStore {
    pub(super) fn new(limits: &Limits, default: OnStoreError) -> Self {
        let hasher = KeyHasher::random();
        let policies = FallbackPolicies::new(limits, default, hasher);
        Self { policies, hasher, memory: Arc::default() }
    }

    /// Replaces the policies. The state of keys stays.
    pub(super) fn set_policies(&mut self, limits: &Limits, default: OnStoreError) {
        self.policies = FallbackPolicies::new(limits, default, self.hasher);
    }

    /// Applies the policies to a request that the store did not decide. The decision is `None` if the request is
    /// rejected.
    pub(super) fn fall_back(&self, operation: Operation, charges: &[Charge<'_>]) -> (Fallback, Option<Decision>) {
        match self.policies.action(charges) {
            FallbackAction::Reject => (Fallback::Rejected, None),
            FallbackAction::Allow => (Fallback::Allowed, Some(Decision::uncounted())),
            FallbackAction::DecideLocally(quotas) => {
                let decision = self.decide_by_shares(operation, charges, quotas);
                (Fallback::DecidedLocally { allowed: decision.is_allowed() }, Some(decision))
            }
        }
    }

    fn decide_by_shares(&self, operation: Operation, charges: &[Charge<'_>], quotas: Quotas) -> Decision {
        let share = |spec: &Arc<LimitSpec>| match self.share(spec)? {
            share if share.is_quota() && quotas == Quotas::Allowed => Some(Arc::new(share.in_shadow())),
            share => Some(share),
        };
        let decided = charges.iter().filter_map(|charge| Some((charge, share(charge.spec)?)));
        let decided: SmallVec<[(&Charge<'_>, Arc<LimitSpec>); 4]> = decided.collect();
        let local =
            decided.iter().map(|(charge, spec)| Charge { spec, key: self.rehash(charge.key), cost: charge.cost });
        let local: SmallVec<[Charge<'_>; 4]> = local.collect();
        let mut decision = ready(operation.run(self.memory(), &local)).locally();
        for (outcome, (charge, _)) in decision.outcomes_mut().iter_mut().zip(&decided) {
            // Later charges of the request may go to the store, which knows the key by its own hash.
            outcome.key = charge.key;
        }
        decision
    }

    /// Returns this process' share of a limit that it decides locally.
    pub(super) fn share(&self, spec: &Arc<LimitSpec>) -> Option<Arc<LimitSpec>> {
        self.policies.share(spec)
    }

    fn rehash(&self, key: KeyHash) -> KeyHash {
        self.hasher.hash(&key.as_u128().to_le_bytes())
    }

    fn memory(&self) -> &MemoryStore {
        self.memory.get_or_init(|| MemoryStore::new().max_keys(MAX_KEYS))
    }
}

/// Returns the answer of a memory store.
fn ready<T>(answer: StoreFuture<T>) -> T {
    match answer.into_ready() {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => unreachable!("a memory store answers at once and never fails"),
    }
}

/// Settles charges that either store may have taken.
impl Store for LocalStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(self.fall_back(Operation::Acquire, charges).1.ok_or(StoreError::breaker_open()))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(self.fall_back(Operation::Peek, charges).1.ok_or(StoreError::breaker_open()))
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let Some(memory) = self.memory.get() else { return StoreFuture::ready(Ok(())) };
        for refund in refunds {
            if let Some(share) = self.share(refund.spec) {
                ready(memory.refund(&[Refund { spec: &share, key: self.rehash(refund.key), ..*refund }]));
            }
        }
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let Some(memory) = self.memory.get() else { return StoreFuture::ready(Ok(())) };
        for (spec, key) in keys {
            if let Some(share) = self.share(spec) {
                ready(memory.reset(&[(&share, self.rehash(*key))]));
            }
        }
        StoreFuture::ready(Ok(()))
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStore").field("memory", &self.memory.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingLog};
    use crate::limit::Limit;
    use crate::on_store_error::Share;

    fn local(limits: Vec<Limit>) -> (Limits, LocalStore) {
        let limits = Limits::new(limits, &KeyHasher::random()).unwrap();
        let local = LocalStore::new(&limits, OnStoreError::DecideLocally(Share::whole()));
        (limits, local)
    }

    /// NexaSphere#1056: the map that replaced a failing store grew until no memory was left.
    #[test]
    fn a_flood_of_keys_during_an_outage_takes_bounded_memory() {
        let limits = vec![Limit::new("window", FixedWindow::per_day(10)), Limit::new("log", SlidingLog::per_day(10))];
        let (limits, local) = local(limits);
        let mut most = 0;
        for number in 0..120_000_u64 {
            let key = KeyHasher::with_secret([0; 16]).hash(&number.to_le_bytes());
            let charge = |(_, spec)| Charge { spec, key, cost: 1 };
            let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
            let (to, decision) = local.fall_back(Operation::Acquire, &charges);
            assert_eq!(to, Fallback::DecidedLocally { allowed: true });
            drop(decision);
            if number.is_multiple_of(10_000) {
                most = most.max(local.memory().bytes());
            }
        }
        assert!(local.memory().keys() <= MAX_KEYS, "{} keys", local.memory().keys());
        assert!(local.memory().keys() > MAX_KEYS / 2, "{} keys", local.memory().keys());
        assert!(most < 20 << 20, "{most} bytes");
    }

    #[test]
    fn memory_is_allocated_when_first_needed() {
        let (limits, local) = local(vec![Limit::new("window", FixedWindow::per_day(10))]);
        let (_, spec) = limits.iter().next().unwrap();
        let key = KeyHasher::random().hash(b"key");
        drop(local.reset(&[(spec, key)]));
        drop(local.refund(&[]));
        assert!(local.memory.get().is_none());
        local.fall_back(Operation::Peek, &[Charge { spec, key, cost: 1 }]);
        assert!(local.memory.get().is_some());
    }

    #[test]
    fn a_shadow_limit_denies_nothing_locally() {
        let limits = vec![
            Limit::new("window", FixedWindow::per_day(10)),
            Limit::new("shadow", FixedWindow::per_day(2)).shadow(),
        ];
        let (limits, mut local) = local(limits);
        let key = KeyHasher::random().hash(b"key");
        let mut decide = |policy, cost| {
            local.set_policies(&limits, policy);
            let charge = |(_, spec)| Charge { spec, key, cost };
            let (to, decision) = local.fall_back(Operation::Acquire, &limits.iter().map(charge).collect::<Vec<_>>());
            (to, decision.map(|decision| decision.is_allowed()))
        };
        let whole = OnStoreError::DecideLocally(Share::whole());
        for request in 0..10 {
            let decided = decide(whole, 1);
            assert_eq!(decided, (Fallback::DecidedLocally { allowed: true }, Some(true)), "request {request}");
        }
        assert_eq!(
            decide(whole, 1),
            (Fallback::DecidedLocally { allowed: false }, Some(false)),
            "the enforced limit denies"
        );
    }

    #[test]
    fn quotas_deny_locally_only_if_none_has_room() {
        let quota = |name, tokens| Limit::new(name, FixedWindow::per_day(tokens)).quota_mode();
        let key = KeyHasher::random().hash(b"key");
        let decide = |limits: Vec<Limit>, costs: &[u64]| -> Vec<bool> {
            let (limits, mut local) = local(limits);
            local.set_policies(&limits, OnStoreError::DecideLocally(Share::one_of(4)));
            let decided = costs.iter().map(|&cost| {
                let charges: Vec<_> = limits.iter().map(|(_, spec)| Charge { spec, key, cost }).collect();
                local.fall_back(Operation::Acquire, &charges).1.is_some_and(|decision| decision.is_allowed())
            });
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
        let shadow = || Limit::new("shadow", FixedWindow::per_day(2)).shadow();
        let (limits, mut local) = local(vec![shadow()]);
        let (_, spec) = limits.iter().next().unwrap();
        let charge = [Charge { spec, key: KeyHasher::random().hash(b"key"), cost: 2 }];
        for (policy, expected) in [
            (OnStoreError::Reject, Fallback::Allowed),
            (OnStoreError::Allow, Fallback::Allowed),
            (OnStoreError::DecideLocally(Share::one_of(2)), Fallback::DecidedLocally { allowed: true }),
        ] {
            local.set_policies(&limits, policy);
            let (to, decision) = local.fall_back(Operation::Acquire, &charge);
            assert_eq!(to, expected, "{policy:?}");
            assert!(decision.is_some_and(|decision| decision.is_allowed()), "{policy:?}");
        }
    }

    #[test]
    fn each_local_store_hashes_keys_by_a_secret_of_its_own() {
        let [one, other] = [(); 2].map(|()| local(vec![Limit::new("window", FixedWindow::per_day(10))]).1);
        let key = KeyHasher::with_secret([0; 16]).hash(b"key");
        assert_ne!(one.rehash(key), key);
        assert_ne!(one.rehash(key), other.rehash(key));
    }
}
