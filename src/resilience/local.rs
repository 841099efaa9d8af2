//! The store in this process that decides where another can't.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::client::Task;
use super::policy::OnStoreError;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::{KeyHash, KeyHasher};
use crate::limit::Limits;
use crate::observe::Fallback;
use crate::store::{Charge, LimitSpec, MemoryStore, Refund, Store, StoreFuture};
use crate::time::{Clock, SystemClock};

/// The most keys that it remembers: a few MB.
const MOST_KEYS: usize = 100_000;

/// Decides about the limits of a limiter that are to be decided locally; the others don't count.
#[derive(Clone)]
pub(super) struct Local {
    policies: Box<[Policy]>,
    /// Keys are hashed again: a fleet's secret may be known, and this table must not be flooded.
    hasher: KeyHasher,
    /// Made when it is first needed. Clones of a limiter share it.
    memory: Arc<OnceLock<MemoryStore>>,
}

#[derive(Clone)]
enum Policy {
    Refuse,
    Allow,
    /// By the spec of a `share` of the limit: of its usual size, `of`, and of others alike.
    Decide {
        of: Arc<LimitSpec>,
        share: Arc<LimitSpec>,
        parts: u32,
    },
}

impl Local {
    pub(super) fn new() -> Self {
        Self { policies: Box::default(), hasher: KeyHasher::random(), memory: Arc::default() }
    }

    /// Takes up the policies of `limits`, of which some have none of their own.
    pub(super) fn plan(&mut self, limits: &Limits, otherwise: OnStoreError) {
        let policy =
            |(limit, spec): (&crate::Limit, &Arc<LimitSpec>)| match limit.store_error_policy().unwrap_or(otherwise) {
                // What is not enforced refuses nothing.
                OnStoreError::Reject if limit.is_shadow() => Policy::Allow,
                OnStoreError::Reject => Policy::Refuse,
                OnStoreError::Allow => Policy::Allow,
                OnStoreError::DecideLocally(share) => {
                    let parts = share.parts();
                    Policy::Decide { of: spec.clone(), share: Arc::new(self.part(spec, parts)), parts }
                }
            };
        self.policies = limits.iter().map(policy).collect();
    }

    /// What the policies make of a request that the store has not decided, and the decision, unless it
    /// is refused.
    pub(super) fn fall_back(&self, task: Task, charges: &[Charge<'_>]) -> (Fallback, Option<Decision>) {
        let mut decides = false;
        let quotas = self.quotas(charges);
        for charge in charges {
            match self.policy(charge.spec) {
                Policy::Refuse => return (Fallback::Rejected, None),
                Policy::Allow => {}
                Policy::Decide { .. } => {
                    let may_pass = charge.spec.is_quota() && quotas != Quotas::TooSmall;
                    if charge.spec.is_enforced() && !may_pass && self.is_share_too_small(charge) {
                        return (Fallback::Rejected, None);
                    }
                    decides = true;
                }
            }
        }
        if decides {
            let decision = self.decide(task, charges, quotas);
            (Fallback::DecidedLocally { allowed: decision.is_allowed() }, Some(decision))
        } else {
            (Fallback::Allowed, Some(Decision::by_nobody(SystemClock::new().now())))
        }
    }

    /// Returns whether the limit could allow the cost, and this process' share of it never can.
    fn is_share_too_small(&self, charge: &Charge<'_>) -> bool {
        let holds = |spec: &LimitSpec| charge.cost <= spec.capacity();
        holds(charge.spec) && !self.share(charge.spec).is_some_and(|share| holds(&share))
    }

    /// Returns what is known of the limits in quota mode before this process decides.
    fn quotas(&self, charges: &[Charge<'_>]) -> Quotas {
        let quotas = || charges.iter().filter(|charge| charge.spec.is_quota());
        if quotas().any(|charge| matches!(self.policy(charge.spec), Policy::Allow)) {
            Quotas::Allowed
        } else if quotas().all(|charge| self.is_share_too_small(charge)) {
            Quotas::TooSmall
        } else {
            Quotas::Decide
        }
    }

    fn decide(&self, task: Task, charges: &[Charge<'_>], quotas: Quotas) -> Decision {
        let share = |spec: &Arc<LimitSpec>| match self.share(spec)? {
            share if share.is_quota() && quotas == Quotas::Allowed => Some(Arc::new(LimitSpec::clone(&share).shadow())),
            share => Some(share),
        };
        let counting = charges.iter().filter_map(|charge| Some((charge, share(charge.spec)?)));
        let counting: SmallVec<[(&Charge<'_>, Arc<LimitSpec>); 4]> = counting.collect();
        let own =
            counting.iter().map(|(charge, spec)| Charge { spec, key: self.rehash(charge.key), cost: charge.cost });
        let own: SmallVec<[Charge<'_>; 4]> = own.collect();
        let mut decision = now(task.ask(self.memory(), &own)).locally();
        for (outcome, (charge, _)) in decision.outcomes_mut().iter_mut().zip(&counting) {
            // As everyone else knows it: a later charge of the request may go to the store.
            outcome.key = charge.key;
        }
        decision
    }

    /// The spec of this store for a limit that it decides about.
    pub(super) fn share(&self, spec: &Arc<LimitSpec>) -> Option<Arc<LimitSpec>> {
        match self.policy(spec) {
            Policy::Decide { of, share, .. } if Arc::ptr_eq(of, spec) => Some(share.clone()),
            Policy::Decide { parts, .. } => Some(Arc::new(self.part(spec, *parts))),
            Policy::Refuse | Policy::Allow => None,
        }
    }

    /// A part of a limit.
    fn part(&self, spec: &LimitSpec, parts: u32) -> LimitSpec {
        spec.sized(spec.algorithm().share(parts), &self.hasher)
    }

    fn policy(&self, spec: &LimitSpec) -> &Policy {
        self.policies.get(usize::from(spec.index())).unwrap_or(&Policy::Refuse)
    }

    fn rehash(&self, key: KeyHash) -> KeyHash {
        self.hasher.hash(&key.as_u128().to_le_bytes())
    }

    fn memory(&self) -> &MemoryStore {
        self.memory.get_or_init(|| MemoryStore::new().max_keys(MOST_KEYS))
    }
}

/// The answer of a store in memory.
fn now<T>(answer: StoreFuture<T>) -> T {
    match answer.into_ready() {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => unreachable!("memory answers at once, and never fails"),
    }
}

/// For those who may have charged either store.
impl Store for Local {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(self.fall_back(Task::Acquire, charges).1.ok_or(StoreError::breaker_open()))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(self.fall_back(Task::Peek, charges).1.ok_or(StoreError::breaker_open()))
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let Some(memory) = self.memory.get() else { return StoreFuture::ready(Ok(())) };
        for refund in refunds {
            if let Some(share) = self.share(refund.spec) {
                now(memory.refund(&[Refund { spec: &share, key: self.rehash(refund.key), ..*refund }]));
            }
        }
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let Some(memory) = self.memory.get() else { return StoreFuture::ready(Ok(())) };
        for (spec, key) in keys {
            if let Some(share) = self.share(spec) {
                now(memory.reset(&[(&share, self.rehash(*key))]));
            }
        }
        StoreFuture::ready(Ok(()))
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("memory", &self.memory.get()).finish_non_exhaustive()
    }
}

/// The limits of a request in quota mode: one of them needs to have room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Quotas {
    /// The policy of one allows the request.
    Allowed,
    /// One of their shares may have room.
    Decide,
    /// None of their shares can ever hold the cost.
    TooSmall,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::resilience::Share;
    use crate::{FixedWindow, SlidingLog};

    fn local(limits: Vec<Limit>) -> (Limits, Local) {
        let limits = Limits::new(limits, &KeyHasher::random()).unwrap();
        let mut local = Local::new();
        local.plan(&limits, OnStoreError::DecideLocally(Share::whole()));
        (limits, local)
    }

    /// NexaSphere#1056: the map that stood in for a store grew until there was no memory left.
    #[test]
    fn a_flood_of_keys_while_the_store_is_gone_takes_a_bounded_memory() {
        let limits = vec![Limit::new("window", FixedWindow::per_day(10)), Limit::new("log", SlidingLog::per_day(10))];
        let (limits, local) = local(limits);
        let mut most = 0;
        for number in 0..120_000_u64 {
            let key = KeyHasher::with_secret([0; 16]).hash(&number.to_le_bytes());
            let charge = |(_, spec)| Charge { spec, key, cost: 1 };
            let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
            let (to, decision) = local.fall_back(Task::Acquire, &charges);
            assert_eq!(to, Fallback::DecidedLocally { allowed: true });
            drop(decision);
            if number.is_multiple_of(10_000) {
                most = most.max(local.memory().bytes());
            }
        }
        assert!(local.memory().keys() <= MOST_KEYS, "{} keys", local.memory().keys());
        assert!(local.memory().keys() > MOST_KEYS / 2, "{} keys", local.memory().keys());
        assert!(most < 20 << 20, "{most} bytes");
    }

    #[test]
    fn it_takes_nothing_until_it_is_needed() {
        let (limits, local) = local(vec![Limit::new("window", FixedWindow::per_day(10))]);
        let (_, spec) = limits.iter().next().unwrap();
        let key = KeyHasher::random().hash(b"key");
        drop(local.reset(&[(spec, key)]));
        drop(local.refund(&[]));
        assert!(local.memory.get().is_none());
        local.fall_back(Task::Peek, &[Charge { spec, key, cost: 1 }]);
        assert!(local.memory.get().is_some());
    }

    #[test]
    fn a_shadow_limit_denies_nothing_while_this_process_decides() {
        let limits = vec![
            Limit::new("window", FixedWindow::per_day(10)),
            Limit::new("shadow", FixedWindow::per_day(2)).shadow(),
        ];
        let (limits, mut local) = local(limits);
        let key = KeyHasher::random().hash(b"key");
        let mut decide = |policy, cost| {
            local.plan(&limits, policy);
            let charge = |(_, spec)| Charge { spec, key, cost };
            let (to, decision) = local.fall_back(Task::Acquire, &limits.iter().map(charge).collect::<Vec<_>>());
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
            "the other one denies"
        );
    }

    #[test]
    fn quotas_deny_locally_only_if_none_has_room() {
        let quota = |name, tokens| Limit::new(name, FixedWindow::per_day(tokens)).quota_mode();
        let key = KeyHasher::random().hash(b"key");
        let decide = |limits: Vec<Limit>, costs: &[u64]| -> Vec<bool> {
            let (limits, mut local) = local(limits);
            local.plan(&limits, OnStoreError::DecideLocally(Share::one_of(4)));
            let decided = costs.iter().map(|&cost| {
                let charges: Vec<_> = limits.iter().map(|(_, spec)| Charge { spec, key, cost }).collect();
                local.fall_back(Task::Acquire, &charges).1.is_some_and(|decision| decision.is_allowed())
            });
            decided.collect()
        };
        // A cost that no share of the first can hold fits the second, until that is used up.
        assert_eq!(decide(vec![quota("own", 4), quota("team", 16)], &[2, 2, 2]), [true, true, false]);
        // A cost that no share can hold is refused.
        assert_eq!(decide(vec![quota("own", 4), quota("team", 4)], &[2]), [false]);
        // A quota that allows what the store does not decide has room for everything.
        let team = quota("team", 16).on_store_error(OnStoreError::Allow);
        assert_eq!(decide(vec![quota("own", 4), team], &[1, 1, 2]), [true; 3]);
    }

    /// A cost that fits the limit but not the share is refused: not so by a limit that is not enforced.
    #[test]
    fn a_shadow_limit_refuses_nothing_whatever_the_policy() {
        let shadow = || Limit::new("shadow", FixedWindow::per_day(2)).shadow();
        let (limits, mut local) = local(vec![shadow()]);
        let (_, spec) = limits.iter().next().unwrap();
        let charge = [Charge { spec, key: KeyHasher::random().hash(b"key"), cost: 2 }];
        for (policy, expected) in [
            (OnStoreError::Reject, Fallback::Allowed),
            (OnStoreError::Allow, Fallback::Allowed),
            (OnStoreError::DecideLocally(Share::one_of(2)), Fallback::DecidedLocally { allowed: true }),
        ] {
            local.plan(&limits, policy);
            let (to, decision) = local.fall_back(Task::Acquire, &charge);
            assert_eq!(to, expected, "{policy:?}");
            assert!(decision.is_some_and(|decision| decision.is_allowed()), "{policy:?}");
        }
    }

    #[test]
    fn keys_are_hashed_again_by_each() {
        let [one, other] = [(); 2].map(|()| local(vec![Limit::new("window", FixedWindow::per_day(10))]).1);
        let key = KeyHasher::with_secret([0; 16]).hash(b"key");
        assert_ne!(one.rehash(key), key);
        assert_ne!(one.rehash(key), other.rehash(key));
    }
}
