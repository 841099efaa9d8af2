//! All that stands between a limiter and its store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::attempt::{Attempt, Keys, keys_of};
use super::breakers::{Breakers, HealthChecks};
use super::local::Local;
use super::policy::OnStoreError;
#[cfg(feature = "tracing")]
use super::report::Reports;
use super::settings::CircuitBreaker;
use crate::decision::{DecidedBy, Decision, Receipt};
use crate::error::{ConfigError, Fault, StoreError};
use crate::hash::{KeyHash, KeyHasher};
use crate::limit::{Limit, Limits, Set};
use crate::limit_spec;
use crate::observe::{Event, Fallback, Observer};
use crate::store::{Charge, LimitSpec, MemoryStore, Refund, Store, StoreFuture};

/// Limits and the store that remembers what is used of them, with what happens when it does not
/// answer. Copies share all but the settings.
#[derive(Clone)]
pub(crate) struct StoreClient {
    limits: Limits,
    pub(super) store: Arc<dyn Store>,
    hasher: KeyHasher,
    pub(super) breakers: Arc<Breakers>,
    pub(super) deadline: Duration,
    on_store_error: OnStoreError,
    local: Local,
    pub(super) observer: Observer,
    /// There is an observer, and something to tell it of decisions.
    tells_decisions: bool,
    /// No limit is enforced.
    is_shadow: bool,
    /// Its limits may have been charged at other positions.
    is_replaceable: bool,
    #[cfg(feature = "tracing")]
    pub(super) reports: Arc<Reports>,
}

/// How long a store may take for a request, unless a limiter is told otherwise.
const DEADLINE: Duration = Duration::from_millis(50);

/// What a store is asked about the charges of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire,
    Peek,
}

impl Task {
    #[inline]
    pub(super) fn ask(self, store: &dyn Store, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match self {
            Self::Acquire => store.acquire(charges),
            Self::Peek => store.peek(charges),
        }
    }
}

impl StoreClient {
    pub(crate) fn new(limits: Vec<Limit>) -> Result<Self, ConfigError> {
        let store = MemoryStore::new();
        Ok(Self::over(Limits::new(limits, &store.hasher())?, store))
    }

    /// Goes by limits that can be replaced: those that there are now.
    pub(crate) fn following(set: &Set) -> Self {
        let store = MemoryStore::new();
        Self { is_replaceable: true, ..Self::over(set.limits(&store.hasher()), store) }
    }

    fn over(limits: Limits, store: MemoryStore) -> Self {
        let mut client = Self {
            limits,
            hasher: store.hasher(),
            store: Arc::new(store),
            breakers: Breakers::new(CircuitBreaker::new()),
            deadline: DEADLINE,
            on_store_error: OnStoreError::default(),
            local: Local::new(),
            observer: Observer::default(),
            tells_decisions: false,
            is_shadow: false,
            is_replaceable: false,
            #[cfg(feature = "tracing")]
            reports: Arc::new(Reports::new()),
        };
        client.local.plan(&client.limits, client.on_store_error);
        client
    }

    /// The same by other limits, with all that it knows of the store.
    pub(crate) fn by(&self, set: &Arc<Set>) -> Self {
        let mut client = Self { limits: set.limits(&self.hasher), ..self.clone() };
        if client.is_shadow {
            client.limits.shadow();
        }
        client.local.plan(&client.limits, client.on_store_error);
        client.tells_decisions = client.observer.is_there() && client.limits.has_thresholds();
        client
    }

    /// Another store, of which nothing is known yet.
    pub(crate) fn set_store(&mut self, store: impl Store) {
        self.hasher = store.hasher();
        self.limits.set_hasher(&self.hasher);
        self.store = Arc::new(store);
        self.breakers = Breakers::new(self.breakers.settings());
        self.local = Local::new();
        self.local.plan(&self.limits, self.on_store_error);
        #[cfg(feature = "tracing")]
        {
            self.reports = Arc::new(Reports::new());
        }
    }

    pub(crate) fn set_deadline(&mut self, deadline: Duration) -> Result<(), ConfigError> {
        if deadline.is_zero() {
            return Err(Fault::WaitZero { what: "deadline" }.into());
        }
        self.deadline = deadline;
        Ok(())
    }

    pub(crate) fn set_breaker(&mut self, settings: CircuitBreaker) {
        self.breakers = Breakers::new(settings);
    }

    pub(crate) fn set_policy(&mut self, policy: OnStoreError) {
        self.on_store_error = policy;
        self.local.plan(&self.limits, policy);
    }

    pub(crate) fn set_observer(&mut self, observer: Observer) {
        self.observer = observer;
        self.tells_decisions = self.observer.is_there() && self.limits.has_thresholds();
    }

    /// Enforces no limit.
    pub(crate) fn shadow(&mut self) {
        self.is_shadow = true;
        self.limits.shadow();
        self.local.plan(&self.limits, self.on_store_error);
        self.tells_decisions = self.observer.is_there();
    }

    #[inline]
    fn tell(&self, task: Task, decision: &Decision) {
        if self.tells_decisions && task == Task::Acquire {
            self.tell_decision(decision);
        }
    }

    /// Tells what a decision about charges that were to be acquired does not say by being allowed or not.
    #[cold]
    pub(crate) fn tell_decision(&self, decision: &Decision) {
        if !self.tells_decisions {
            return;
        }
        let is_charged = decision.is_charged();
        for outcome in decision.outcomes() {
            let Some(limit) = self.limits.as_slice().get(outcome.limit()) else { continue };
            let (limit, is_shadow) = (limit.name(), limit.is_shadow());
            if is_charged && outcome.uses_overage() {
                self.observer.tell(&Event::OverageUsed { limit, outcome });
            }
            if let Some(begun) = outcome.begun() {
                let (level, span) = (begun.level as u32, begun.duration());
                self.observer.tell(&Event::PenaltyBegan { limit, level, span });
            }
            if is_shadow && !outcome.is_allowed() {
                self.observer.tell(&Event::ShadowDenied { limit, outcome });
            }
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Decides a request, and takes its charges from all its limits or from none.
    #[inline]
    pub(crate) fn acquire(self: &Arc<Self>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.decide(Task::Acquire, charges)
    }

    /// Decides a request as [`acquire`](Self::acquire) would now, and takes nothing.
    pub(crate) fn peek(self: &Arc<Self>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.decide(Task::Peek, charges)
    }

    #[inline]
    fn decide(self: &Arc<Self>, task: Task, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if !self.breakers.are_closed() {
            return self.try_to_decide(task, charges);
        }
        let answer = task.ask(&*self.store, charges);
        if answer.is_settled() && !self.tells_decisions {
            return answer;
        }
        self.unsettled(task, None, answer, charges)
    }

    /// Decides while at least one breaker exists.
    #[cold]
    fn try_to_decide(self: &Arc<Self>, task: Task, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if let Some(decision) = self.store.remembered(charges) {
            return StoreFuture::remembered(decision);
        }
        match self.admit(charges) {
            Ok(attempt) => {
                let answer = task.ask(&*self.store, charges);
                if answer.is_remembered() {
                    return answer;
                }
                self.unsettled(task, Some(attempt), answer, charges)
            }
            Err(error) => {
                let result = self.fall_back(task, error, charges);
                StoreFuture::ready(result.inspect(|decision| self.tell(task, decision)))
            }
        }
    }

    /// Makes a decision of an answer that is on its way, or of an error; or tells of one.
    #[cold]
    fn unsettled(
        self: &Arc<Self>,
        task: Task,
        attempt: Option<Attempt>,
        answer: StoreFuture<Decision>,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let pending = match answer.into_pending() {
            Ok(answer) => {
                let result = self.record_ready(attempt, answer);
                let result = result.or_else(|error| self.fall_back(task, error, charges));
                return StoreFuture::ready(result.inspect(|decision| self.tell(task, decision)));
            }
            Err(pending) => pending,
        };
        let attempt = attempt.unwrap_or_else(|| Attempt::new(&self.breakers, keys_of(charges), HealthChecks::new()));
        let client = self.clone();
        let asked: SmallVec<[(Arc<LimitSpec>, KeyHash, u64); 2]> =
            charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
        StoreFuture::pending(async move {
            let result = client.watch(attempt, pending).await;
            let result = result.or_else(|error| {
                let charges: SmallVec<[Charge<'_>; 4]> =
                    asked.iter().map(|(spec, key, cost)| Charge { spec, key: *key, cost: *cost }).collect();
                client.fall_back(task, error, &charges)
            });
            result.inspect(|decision| client.tell(task, decision))
        })
    }

    /// What the policies make of charges that the store was to acquire.
    pub(crate) fn acquire_otherwise(&self, error: StoreError, charges: &[Charge<'_>]) -> Result<Decision, StoreError> {
        self.fall_back(Task::Acquire, error, charges)
    }

    /// What the policies make of a request that the store has not decided: by the overrides that are known here.
    fn fall_back(&self, task: Task, error: StoreError, charges: &[Charge<'_>]) -> Result<Decision, StoreError> {
        let known = |charge: &Charge<'_>| {
            let last = charge.spec.is_overridable().then(|| self.store.last_override(charge.spec, charge.key))??;
            charge.spec.overridden(last.size()).map(Arc::new)
        };
        let overridden: SmallVec<[Arc<LimitSpec>; 1]> = charges.iter().filter_map(known).collect();
        let size = |charge: &Charge<'_>| limit_spec::find(charge.spec.index().into(), &overridden);
        let sized = charges.iter().map(|&charge| (size(&charge).unwrap_or(charge.spec), charge));
        let charges: SmallVec<[Charge<'_>; 4]> = sized.map(|(spec, charge)| Charge { spec, ..charge }).collect();
        let (to, decision) = self.local.fall_back(task, &charges);
        let decision = decision.map(|decision| decision.overridden(&overridden));
        self.observer.tell(&Event::FellBack { to });
        match to {
            Fallback::Rejected => Err(error),
            Fallback::Allowed | Fallback::DecidedLocally { .. } => decision.ok_or(error),
        }
    }

    /// Whoever keeps what was charged by `by`.
    pub(crate) fn keeper(&self, by: DecidedBy) -> &dyn Store {
        match by {
            DecidedBy::Store => &*self.store,
            DecidedBy::Local | DecidedBy::Nobody => &self.local,
        }
    }

    /// What a receipt says is to be given back to its [keeper](Self::keeper).
    pub(crate) fn refunds<'a>(&'a self, receipt: &'a Receipt) -> SmallVec<[Refund<'a>; 4]> {
        let refund = |charged: &crate::Outcome| {
            let own = || self.limits.spec(charged.limit());
            let spec = limit_spec::find(charged.limit(), receipt.all_overridden()).or_else(|| match receipt.by {
                _ if !self.is_replaceable => own(),
                DecidedBy::Store => self.limits.known_as(charged.identity),
                DecidedBy::Local | DecidedBy::Nobody => self
                    .limits
                    .all_specs()
                    .iter()
                    .find(|spec| self.local.share(spec).is_some_and(|share| share.identity() == charged.identity)),
            })?;
            let payee = match receipt.by {
                DecidedBy::Store => spec.identity(),
                DecidedBy::Local | DecidedBy::Nobody => self.local.share(spec)?.identity(),
            };
            let refund = Refund { spec, key: charged.key, cost: charged.cost, mark: charged.mark };
            (payee == charged.identity).then_some(refund)
        };
        receipt.charged().iter().filter_map(refund).collect()
    }

    /// Gives back what still counts of a receipt.
    pub(crate) fn refund(self: &Arc<Self>, receipt: &Receipt) -> StoreFuture<()> {
        let refunds = self.refunds(receipt);
        if refunds.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        if receipt.by != DecidedBy::Store {
            return self.local.refund(&refunds);
        }
        let keys = refunds.iter().map(|refund| refund.key).collect();
        self.tell_store(keys, |store| store.refund(&refunds))
    }

    /// Like [`refund`](Self::refund), for whoever can't wait: later, where the store does not answer at
    /// once. Without a runtime, what was charged is left to come back by itself.
    pub(crate) fn give_back(self: &Arc<Self>, receipt: &Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt).into_ready(), Handle::try_current()) {
            runtime.spawn(pending);
        }
    }

    /// Forgets a key under every limit.
    pub(crate) fn reset(self: &Arc<Self>, key: KeyHash) -> StoreFuture<()> {
        let keys: SmallVec<[_; 4]> = self.limits.all_specs().iter().map(|spec| (spec, key)).collect();
        self.forget(&keys)
    }

    /// Forgets keys, each under its limit.
    pub(crate) fn forget(self: &Arc<Self>, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        drop(self.local.reset(keys));
        self.tell_store(keys.iter().map(|(_, key)| *key).collect(), |store| store.reset(keys))
    }

    pub(crate) fn tell_event(&self, event: &Event<'_>) {
        self.observer.tell(event);
    }

    /// Runs a store operation on `keys` that has no fallback.
    pub(crate) fn tell_store<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        keys: Keys,
        tell: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let attempt = match self.admit_keys(keys, &[]) {
            Ok(attempt) => attempt,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        match tell(&*self.store).into_pending() {
            Ok(answer) => StoreFuture::ready(self.record_ready(Some(attempt), answer)),
            Err(pending) => {
                let client = self.clone();
                StoreFuture::pending(async move { client.watch(attempt, pending).await })
            }
        }
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient")
            .field("limits", &self.limits.as_slice())
            .field("store", &self.store)
            .field("deadline", &self.deadline)
            .field("circuit_breaker", &self.breakers.settings())
            .field("on_store_error", &self.on_store_error)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}
