//! Decides the charges of requests: by the store, or by the policies of the limits if the store is slow or fails.
//!
//! | module | content |
//! | --- | --- |
//! | this module | [`Engine`], which decides, refunds and resets charges, and its configuration |
//! | `engine_reports` | Its reports to the recorders and to the log |
//! | `guard` | Keeps calls from a store that is slow or fails |
//! | `breaker` | The circuit breaker of each node |
//! | `charges_in_flight` | The charges in flight, by which denials are no strikes |
//! | `fallback` | Decides by the policies of the limits, in a memory store |
//! | `outage_log` | Reports outages to the log |
//! | `reservation` | Lets an allowed request wait for its turn |
//! | `leases`, `blocks`, `leased_key` | Decides by tokens that were leased from the store |
//! | `slots` | Holds the slots of requests in flight until they end |
//! | `renewals`, `held_slots` | Renews these slots in a database |

mod blocks;
mod breaker;
mod charges_in_flight;
mod engine_reports;
mod fallback;
mod guard;
mod held_slots;
mod leased_key;
mod leases;
#[cfg(feature = "tracing")]
mod outage_log;
mod renewals;
mod reservation;
mod slots;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};

use self::blocks::Blocks;
use self::breaker::Call;
pub use self::breaker::CircuitBreaker;
pub(crate) use self::charges_in_flight::ChargesInFlight;
use self::fallback::FallbackPolicies;
pub(crate) use self::guard::Deadline;
use self::guard::Guard;
use self::held_slots::HeldSlots;
#[cfg(feature = "tracing")]
use self::outage_log::OutageLog;
pub(crate) use self::reservation::Reservation;
pub use self::slots::SlotGuard;
pub(crate) use self::slots::Slots;
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose, Receipt};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::key::hash::{KeyHash, KeyHasher};
use crate::limit::{Limits, OnStoreError};
use crate::recorder::{Event, Recorders};
use crate::store::{Answer, KeyMap, Store, StoreFuture};
use crate::time::Timestamp;

/// The settings for failures of a limiter's store, and its recorders.
#[derive(Clone)]
pub(crate) struct EngineConfig {
    pub(crate) deadline: Duration,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) recorders: Recorders,
    /// The share of a limit, in percent, from which a key is near it.
    pub(crate) near_percent: u32,
    /// Whether all limits are in shadow mode.
    pub(crate) is_shadow: bool,
    /// Whether this process knows when requests end, and holds their slots until then.
    pub(crate) holds_slots: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            breaker: CircuitBreaker::new(),
            on_store_error: OnStoreError::default(),
            recorders: Recorders::default(),
            near_percent: 80,
            is_shadow: false,
            holds_slots: true,
        }
    }
}

/// Decides the charges of requests under the limits of a limiter.
///
/// Clones share the store, the breakers, the local store and the outage log, which limiters with the same store share,
/// too.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) limits: Limits,
    guard: Guard,
    /// The part that decides without a call. Only a store that keeps states in this process decides more than denials.
    by_at_once: DecidedBy,
    fallback: FallbackPolicies,
    recorders: Recorders,
    near_percent: u32,
    is_shadow: bool,
    holds_slots: bool,
    /// The turns of operations that wait for a key under these limits. The operation whose turn it is locks the number of
    /// tokens that the last one has left.
    pub(crate) turns: Arc<KeyMap<KeyHash, Mutex<u64>>>,
    /// Wakes operations that wait for a slot, by its fingerprint, when this process returns one.
    pub(crate) released: Arc<KeyMap<u128, Notify>>,
    /// The tokens that are leased from the store.
    blocks: Arc<Blocks>,
    /// The slots that are renewed.
    renewed: Arc<HeldSlots>,
    #[cfg(feature = "tracing")]
    outage_log: Arc<OutageLog>,
}

impl Engine {
    /// Creates the engine of a limiter, which must [prepare](Self::prepare) the store before it decides.
    ///
    /// # Errors
    ///
    /// Returns an error if the deadline is 0, or if `near_percent` is not 1 to 100.
    pub(crate) fn new(mut limits: Limits, store: Arc<dyn Store>, config: EngineConfig) -> Result<Self, ConfigError> {
        let EngineConfig { deadline, breaker, on_store_error, recorders, near_percent, is_shadow, holds_slots } =
            config;
        if deadline.is_zero() {
            return Err(ConfigError::new("deadline is 0: use at least 1 ns"));
        }
        if !(1..=100).contains(&near_percent) {
            return Err(ConfigError::new(format!("near_limit is {near_percent} percent: use 1 to 100")));
        }
        limits.set_store(&*store, is_shadow, holds_slots);
        let keeps_states_here = store.usage().keys.is_some();
        recorders.iter().for_each(|recorder| recorder.prepare(&limits.names, Some(&store)));
        Ok(Self {
            by_at_once: if keeps_states_here { DecidedBy::Memory } else { DecidedBy::RememberedDenial },
            guard: Guard::new(store, breaker, deadline),
            fallback: FallbackPolicies::new(on_store_error),
            recorders,
            near_percent,
            is_shadow,
            holds_slots,
            turns: Arc::default(),
            released: Arc::default(),
            blocks: Blocks::new(),
            renewed: Arc::default(),
            #[cfg(feature = "tracing")]
            outage_log: OutageLog::of_store(limits.store),
            limits,
        })
    }

    /// Prepares the store for the limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't keep a limit.
    pub(crate) fn prepare(&mut self) -> Result<(), ConfigError> {
        self.limits.prepare(&*self.guard.store)
    }

    /// Returns the same engine for other limits, prepared: it shares the breakers and the local store.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't keep a limit.
    pub(crate) fn with_limits(&self, limits: &Limits) -> Result<Self, ConfigError> {
        let limits = limits.clone();
        let (turns, blocks, renewed) = (Arc::default(), Blocks::new(), Arc::default());
        let mut engine = Self { limits, turns, blocks, renewed, ..self.clone() };
        engine.limits.set_store(&*self.guard.store, self.is_shadow, self.holds_slots);
        engine.prepare()?;
        Ok(engine)
    }

    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.limits.hasher
    }

    /// Returns the [name](Store::name) of the store.
    pub(crate) fn store_name(&self) -> Option<String> {
        self.guard.store.name()
    }

    /// Returns the deadline of a call.
    pub(crate) fn deadline(&self) -> Deadline {
        self.guard.deadline()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("limits", &self.limits).field("store", &self.guard.store).finish_non_exhaustive()
    }
}

impl Engine {
    /// Decides a request. [Takes](Purpose::Take) its costs from all its limits or from none.
    #[inline(always)]
    pub(crate) fn decide(self: &Arc<Self>, charges: Charges, purpose: Purpose) -> StoreFuture<Decision> {
        self.decide_until(charges, purpose, || self.start_recording(purpose), || self.deadline(), false)
    }

    /// Decides a request that is not [recorded](Self::record), because the caller may ask it again at a lower cost.
    pub(crate) fn decide_unrecorded(self: &Arc<Self>, charges: Charges, purpose: Purpose) -> StoreFuture<Decision> {
        self.decide_until(charges, purpose, || None, || self.deadline(), false)
    }

    /// Decides a request within a deadline, which is needed only if the store has to be called: otherwise, it would take
    /// 40 instructions ("token bucket" in `.ci/instructions`). `has_waited` is whether it has waited for a block.
    #[inline(always)]
    fn decide_until(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
        began: impl FnOnce() -> Option<Instant>,
        deadline: impl FnOnce() -> Deadline,
        has_waited: bool,
    ) -> StoreFuture<Decision> {
        if charges.is_empty() {
            return StoreFuture::ready(Ok(Decision::unlimited()));
        }
        let began = began();
        if self.limits.have_leases
            && purpose == Purpose::Take
            && let Some(decision) = self.decide_by_blocks(&mut charges)
        {
            self.record(began, &decision);
            return StoreFuture::ready(Ok(decision));
        }
        let Some(at) = self.guard.store.decide_at_once(&mut charges, purpose) else {
            return match self.limits.have_leases && purpose == Purpose::Take {
                true => self.decide_and_lease(charges, began, deadline(), has_waited),
                false => self.decide_in_store(charges, purpose, began, deadline()),
            };
        };
        if !charges.iter().all(Outcome::is_answered) {
            let unanswered = StoreFuture::ready(Ok(Answer::new(at)));
            return self.complete(self.guard.breakers.begin(), unanswered, charges, purpose, began, deadline());
        }
        let takes = purpose == Purpose::Take;
        // Only a decision that is recorded is moved once more, which takes 29 instructions ("token bucket" in
        // `.ci/instructions`).
        if began.is_none() {
            return StoreFuture::ready(Ok(Decision::of(at, self.by_at_once, takes, self.limits.store, charges)));
        }
        let decision = Decision::of(at, self.by_at_once, takes, self.limits.store, charges);
        self.record(began, &decision);
        StoreFuture::ready(Ok(decision))
    }

    /// Copies the answers into the charges of a request, and returns the instant of the decision.
    ///
    /// # Errors
    ///
    /// Returns an error if a charge is not answered.
    #[inline]
    fn finish(&self, answer: Answer, charges: &mut Charges) -> Result<Timestamp, StoreError> {
        let at = answer.finish(charges);
        if charges.iter().all(Outcome::is_answered) { Ok(at) } else { Err(self.unanswered(charges)) }
    }

    /// Creates the error of a store that has not answered all charges.
    #[cold]
    fn unanswered(&self, charges: &[Outcome]) -> StoreError {
        let unanswered = charges.iter().filter(|outcome| !outcome.is_answered());
        if let Some(limit) = unanswered.clone().find_map(|outcome| self.limits.unprepared(outcome)) {
            return StoreError::not_prepared(&limit.name);
        }
        let names: Vec<_> = unanswered.filter_map(|outcome| self.limits.names.get(outcome.limit())).collect();
        StoreError::of_one_request(format!(
            "it did not answer the limits {names:?}: answer all charges that `decide` or `decide_at_once` is given, or \
             return answered clones of all of them, in their order, with `Answer::with_charges`"
        ))
    }

    /// Decides a request by a call, unless a breaker is open.
    #[cold]
    fn decide_in_store(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        match self.begin(&charges) {
            Ok(call) => {
                let answer = self.guard.store.decide(&mut charges, purpose, deadline.left() / 2);
                self.complete(call, answer, charges, purpose, began, deadline)
            }
            Err(error) => StoreFuture::ready(self.decide_locally(Some(error), charges, purpose, began)),
        }
    }

    /// Awaits the answer of a call, replaces an error by the policies' decision, and records the decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        call: Call,
        answer: StoreFuture<Answer>,
        mut charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        self.follow(answer, deadline, move |engine, answer, by| {
            let answer = answer.and_then(|answer| engine.finish(answer, &mut charges));
            match engine.end(&call, &charges, answer, by, |_| true) {
                Ok(at) => {
                    let decision = engine.decision(at, by, charges, purpose);
                    if engine.limits.have_leases && decision.is_charged() {
                        engine.blocks.count(decision.outcomes());
                    }
                    engine.record(began, &decision);
                    Ok(decision)
                }
                Err(error) => engine.decide_locally(Some(error), charges, purpose, began),
            }
        })
    }

    /// Decides a request where an earlier decision about it was made. Records it if it `began` at an instant.
    pub(crate) fn decide_by(
        self: &Arc<Self>,
        by: DecidedBy,
        charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        if by.is_store() || charges.is_empty() {
            return self.decide_until(charges, purpose, || began, || deadline, false);
        }
        StoreFuture::ready(self.decide_locally(None, charges, purpose, began))
    }

    /// Decides a request by the policies of its limits, because the store has failed: now, or before. Returns the error
    /// if they reject it.
    pub(crate) fn decide_locally(
        &self,
        error: Option<StoreError>,
        charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.fallback.decide(&self.limits, purpose, charges);
        if error.is_some() {
            self.report_event(&Event::FellBack { to });
        }
        let decision = decision.ok_or_else(|| error.unwrap_or_else(|| StoreError::breaker_open(None)))?;
        self.record(began, &decision);
        Ok(decision)
    }

    /// Decides a request as [`decide`](Self::decide) would now, but affects neither the breakers, nor the log of
    /// outages. Returns the decision, unless the request would be rejected, and why the store does not decide.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
    ) -> (Option<Decision>, Option<StoreError>) {
        let (began, deadline) = (self.start_recording(purpose), self.deadline());
        let at_once = self.guard.store.decide_at_once(&mut charges, purpose);
        let answer = match (at_once, self.guard.rejection(&charges)) {
            (Some(at), _) => Ok((Answer::new(at), self.by_at_once)),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let answer = self.guard.store.decide(&mut charges, purpose, deadline.left() / 2);
                self.follow(answer, deadline, |_, answer, by| Ok((answer?, by))).await
            }
        };
        match answer.and_then(|(answer, by)| Ok((self.finish(answer, &mut charges)?, by))) {
            Ok((at, by)) => {
                let decision = self.decision(at, by, charges, purpose);
                self.record(began, &decision);
                (Some(decision), None)
            }
            Err(error) => (self.fallback.decide(&self.limits, purpose, charges).1, Some(error)),
        }
    }

    /// Creates the decision of charges that the store has answered at an instant.
    fn decision(&self, at: Timestamp, by: DecidedBy, charges: Charges, purpose: Purpose) -> Decision {
        Decision::of(at, by, purpose == Purpose::Take, self.limits.store, charges)
    }
}

impl Engine {
    /// Calls the store for an operation that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        charges: Charges,
        deadline: Deadline,
        operation: impl FnOnce(&dyn Store, &Charges) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.begin(&charges) {
            Ok(call) => self.follow(operation(&*self.guard.store, &charges), deadline, move |engine, answer, by| {
                // The caller learns what the store does not support, such as a refund of a sketch.
                engine.end(&call, &charges, answer, by, |error| error.kind() != StoreErrorKind::NotSupported)
            }),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Begins a call that concerns `charges`.
    ///
    /// # Errors
    ///
    /// Returns an error if the breaker of a node is open.
    fn begin(&self, charges: &[Outcome]) -> Result<Call, StoreError> {
        let (admitted, changes) = self.guard.begin(charges);
        self.report_changes(changes);
        admitted.inspect_err(|error| self.report_failure(error))
    }

    /// Passes an answer on: at once if it is ready, otherwise when it is there or the deadline is over.
    fn follow<T: Send + Unpin + 'static, U>(
        self: &Arc<Self>,
        answer: StoreFuture<T>,
        deadline: Deadline,
        finish: impl FnOnce(&Self, Result<T, StoreError>, DecidedBy) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        match answer.into_ready() {
            Ok(answer) => StoreFuture::ready(finish(self, answer, DecidedBy::Memory)),
            Err(pending) => {
                let engine = self.clone();
                StoreFuture::pending(async move {
                    let answer = deadline.apply(pending).await;
                    finish(&engine, answer, DecidedBy::Store)
                })
            }
        }
    }

    /// Ends a call, and reports its error if that is a failure, and the breakers that it has changed.
    fn end<T>(
        &self,
        call: &Call,
        charges: &[Outcome],
        answer: Result<T, StoreError>,
        by: DecidedBy,
        is_failure: fn(&StoreError) -> bool,
    ) -> Result<T, StoreError> {
        let (answer, changes) = self.guard.end(call, charges, answer, by);
        if let Err(error) = &answer
            && is_failure(error)
        {
            self.report_failure(error);
        }
        self.report_changes(changes);
        answer
    }
}

impl Engine {
    /// Refunds the charges of a receipt where they were made, as far as they still count. Leaves out limits that no
    /// longer exist.
    pub(crate) fn refund(self: &Arc<Self>, mut receipt: Receipt, deadline: Deadline) -> StoreFuture<()> {
        self.limits.fit_refund(&mut receipt.charged);
        self.refund_fitted(receipt, deadline)
    }

    /// Refunds a receipt that a caller has passed. `is_live` is whether limits can be removed.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the receipt is of another limiter.
    pub(crate) fn refund_own(self: &Arc<Self>, mut receipt: Receipt, is_live: bool) -> StoreFuture<()> {
        let charged = receipt.charged.len();
        self.limits.fit_refund(&mut receipt.charged);
        let is_own = receipt.store == self.limits.store && (is_live || receipt.charged.len() == charged);
        if charged > 0 && !is_own {
            let message = "a receipt is of another limiter: refund it by the one that charged it";
            return StoreFuture::ready(Err(StoreError::invalid_call(message)));
        }
        self.refund_fitted(receipt, self.deadline())
    }

    fn refund_fitted(self: &Arc<Self>, receipt: Receipt, deadline: Deadline) -> StoreFuture<()> {
        let Receipt { by, mut charged, .. } = receipt;
        if by == DecidedBy::Lease {
            charged.retain(|outcome| !self.blocks.put_back(outcome));
        }
        self.blocks.forget(&charged);
        if by.is_store() && !charged.is_empty() {
            return self.call(charged, deadline, |store, charged| store.refund(charged));
        }
        self.fallback.refund(&self.limits, &charged);
        StoreFuture::ready(Ok(()))
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that
    /// the store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt, self.deadline()).into_ready(), Handle::try_current())
        {
            runtime.spawn(pending);
        }
    }

    /// Resets the keys of charges.
    pub(crate) fn reset(self: &Arc<Self>, mut charges: Charges) -> StoreFuture<()> {
        // Slots belong to requests in flight.
        charges.retain(|outcome| !outcome.algorithm().is_concurrency);
        self.fallback.reset(&self.limits, &charges);
        self.blocks.reset(&charges);
        let reset = self.call(charges.clone(), self.deadline(), |store, charges| store.reset(charges));
        match reset.into_ready() {
            Ok(result) => StoreFuture::ready(result),
            Err(pending) => {
                let engine = self.clone();
                StoreFuture::pending(async move {
                    // A block that was taken meanwhile may be of the time before.
                    pending.await.inspect(|()| engine.blocks.reset(&charges))
                })
            }
        }
    }
}
