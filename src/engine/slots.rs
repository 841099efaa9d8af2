//! The slots of requests in flight: how they are taken, and returned when the requests end.

use std::fmt;
use std::future::pending;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::Engine;
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose, Receipt};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::store::StoreFuture;

/// An allowed operation, which holds its slots under [concurrency limits](crate::Concurrency) until this is dropped. It
/// dereferences to the [`Decision`].
///
/// Returned by [`Limiter::hold`](crate::Limiter::hold) and [`Permit::hold`](crate::Permit::hold).
///
/// In memory, dropping it frees the slots at once. In a database, a background task returns them soon after: if the
/// process ends before that, they are free after the time to live.
#[derive(Debug)]
#[must_use = "the slots are free again when this is dropped"]
pub struct SlotGuard {
    pub(crate) decision: Decision,
    pub(crate) slots: Option<Arc<Slots>>,
}

impl SlotGuard {
    /// Holds no slots.
    pub(crate) fn empty(decision: Decision) -> Self {
        Self { decision, slots: None }
    }

    /// Holds the slots that a decision since an instant has taken.
    pub(super) fn of(engine: &Arc<Engine>, mut decision: Decision, since: Instant) -> Self {
        let slots = Slots::take(engine, &mut decision, since);
        Self { decision, slots }
    }

    /// Waits until a slot may be free although its request is still in flight, because this process could not renew it
    /// in time. Never completes in memory.
    ///
    /// Others may take its place then, so that more requests than allowed are in flight until this one ends. Select on
    /// it to end work that must never exceed the limit:
    ///
    /// ```
    /// use tower_ratelimit::{AcquireError, Limiter};
    ///
    /// # async fn encode() {}
    /// async fn run(licences: &Limiter) -> Result<(), AcquireError> {
    ///     let held = licences.hold("encoder", 1).await?;
    ///     tokio::select! {
    ///         () = encode() => {}
    ///         () = held.expired() => eprintln!("stopped: another process may use the licence"),
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn expired(&self) {
        match &self.slots {
            Some(slots) => slots.expired().await,
            None => pending().await,
        }
    }
}

impl Deref for SlotGuard {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

/// The slots of a request, which are released when this is dropped.
pub(crate) struct Slots {
    engine: Arc<Engine>,
    by: DecidedBy,
    held: Mutex<Charges>,
    since: Instant,
    /// The task that releases slots after their longest hold.
    timer: OnceLock<AbortHandle>,
}

impl Slots {
    /// Takes the slots that an allowed request has taken out of its decision, if there are any.
    fn take(engine: &Arc<Engine>, decision: &mut Decision, since: Instant) -> Option<Arc<Self>> {
        let by = decision.decided_by();
        let mut held = engine.limits.no_charges();
        if decision.is_charged() {
            for outcome in decision.outcomes_mut().iter_mut().filter(|outcome| outcome.is_allowed()) {
                if outcome.algorithm().is_concurrency && outcome.cost() > 0 {
                    held.push(outcome.clone());
                    // No longer a part of what a receipt refunds.
                    outcome.charge.cost = 0;
                }
            }
        }
        if held.is_empty() {
            return None;
        }
        let taken: SmallVec<[_; 2]> = held.iter().map(|outcome| outcome.limit()).collect();
        if engine.renews(by) {
            engine.hold_renewed(&held, since);
        }
        let slots =
            Arc::new(Self { engine: engine.clone(), by, held: Mutex::new(held), since, timer: OnceLock::new() });
        slots.release_at_longest_hold();
        // Last, so that a recorder that panics leaves no slot behind.
        let name = |limit: &usize| engine.limits[*limit].name();
        taken.iter().for_each(|limit| engine.report_event(&Event::SlotTaken { limit: name(limit) }));
        Some(slots)
    }

    /// Releases the slots of limits for which `is_released` holds.
    fn release(&self, is_released: impl Fn(&Outcome) -> bool) {
        let mut held = self.held();
        // Most often, there are none.
        if !held.iter().any(&is_released) {
            return;
        }
        let mut released = held.clone();
        held.retain(|outcome| !is_released(outcome));
        drop(held);
        released.retain(|outcome| is_released(outcome));
        let has_expired = |outcome: &Outcome| {
            let certain_until = self.certain_until(&[outcome.fingerprint()]);
            (outcome.limit(), certain_until.is_some_and(|until| until <= Instant::now()))
        };
        let ended: SmallVec<[_; 2]> = match self.engine.recorders.is_empty() {
            true => SmallVec::new(),
            false => released.iter().map(has_expired).collect(),
        };
        self.engine.return_slots(self.by, released);
        for (limit, has_expired) in ended {
            let limit = self.engine.limits[limit].name();
            if has_expired {
                self.engine.report_event(&Event::SlotsExpired { limit, slots: 1 });
            }
            self.engine.report_event(&Event::SlotReleased { limit, held: self.since.elapsed() });
        }
    }

    /// Releases the slots of limits that hold them until the head of the response.
    pub(crate) fn release_at_head(&self) {
        self.release(|outcome| self.engine.limits[outcome.limit()].is_until_head);
    }

    fn release_at_longest_hold(self: &Arc<Self>) {
        let longest = |outcome: &Outcome| Some((self.engine.limits[outcome.limit()].longest_hold?, outcome.limit()));
        let mut holds: SmallVec<[_; 2]> = self.held().iter().filter_map(longest).collect();
        if holds.is_empty() {
            return;
        }
        holds.sort_unstable();
        let Ok(runtime) = Handle::try_current() else { return };
        let (slots, since) = (Arc::downgrade(self), self.since);
        let timer = runtime.spawn(async move {
            for (longest, limit) in holds {
                sleep(longest.saturating_sub(since.elapsed())).await;
                let Some(slots) = slots.upgrade() else { return };
                slots.release(|outcome| outcome.limit() == limit);
            }
        });
        let _ = self.timer.set(timer.abort_handle());
    }

    /// Returns whether all slots were released.
    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// Waits until one of the slots has expired in the database, because it could not be renewed. Never ends if the
    /// slots do not expire, or are released.
    pub(crate) async fn expired(&self) {
        loop {
            let held: SmallVec<[_; 2]> = self.held().iter().map(|outcome| outcome.fingerprint()).collect();
            match self.certain_until(&held) {
                Some(until) if until <= Instant::now() => return,
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        }
    }

    /// Returns the instant from which a slot under these fingerprints may have expired, if slots expire.
    fn certain_until(&self, held: &[u128]) -> Option<Instant> {
        self.engine.renews(self.by).then(|| self.engine.renewed.certain_until(held, self.since)).flatten()
    }

    fn held(&self) -> MutexGuard<'_, Charges> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("held", &*self.held()).finish_non_exhaustive()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.get() {
            timer.abort();
        }
        self.release(|_| true);
    }
}

impl Engine {
    /// Decides a request as [`decide`](Self::decide) does, and holds the slots that it has taken: one of each concurrency
    /// limit, whatever its cost is. They are released if the caller gives up.
    pub(crate) fn hold(self: &Arc<Self>, mut charges: Charges) -> StoreFuture<SlotGuard> {
        for outcome in charges.iter_mut().filter(|outcome| outcome.algorithm().is_concurrency) {
            outcome.charge.cost = 1;
        }
        let (engine, since) = (self.clone(), Instant::now());
        let hold = move |decision| SlotGuard::of(&engine, decision, since);
        match self.decide(charges, Purpose::Take).into_ready() {
            Ok(decision) => StoreFuture::ready(decision.map(hold)),
            Err(pending) => {
                let engine = self.clone();
                StoreFuture::pending(
                    async move { engine.complete_with_slots(async move { pending.await.map(hold) }).await },
                )
            }
        }
    }

    /// Runs an operation in a task of its own if it may take slots. If the caller gives up, they are released.
    pub(super) async fn complete_with_slots<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match Handle::try_current() {
            Ok(runtime) if self.limits.have_slots => {
                runtime.spawn(operation).await.unwrap_or_else(|error| Err(StoreError::new(error)))
            }
            _ => operation.await,
        }
    }

    /// Returns whether slots that were taken by this part of the limiter expire, so that they have to be renewed.
    fn renews(&self, by: DecidedBy) -> bool {
        by.is_store() && !self.limits.keeps_slots_here
    }

    /// Returns slots to the part of the limiter that has given them, and then wakes those who wait for one.
    fn return_slots(self: &Arc<Self>, by: DecidedBy, mut released: Charges) {
        if self.renews(by) {
            self.renewed.release(&mut released);
        }
        self.refund_slots(by, released);
    }

    /// Refunds slots, in the background if the store does not answer at once, and then wakes those who wait for one.
    pub(super) fn refund_slots(self: &Arc<Self>, by: DecidedBy, released: Charges) {
        let keys: SmallVec<[_; 2]> = released.iter().map(|outcome| outcome.fingerprint()).collect();
        let wake = move |engine: &Self| {
            keys.iter().filter_map(|key| engine.released.get(key)).for_each(|released| released.notify_one());
        };
        let receipt = Receipt { by, store: self.limits.store, charged: released };
        match self.refund(receipt, self.deadline()).into_ready() {
            Ok(_) => wake(self),
            Err(refund) => {
                let Some(runtime) = Handle::try_current().ok().or_else(|| self.renewed.runtime()) else { return };
                let engine = self.clone();
                runtime.spawn(async move {
                    let _ = refund.await;
                    wake(&engine);
                });
            }
        }
    }
}
