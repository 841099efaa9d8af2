//! The slots that a process holds in a database, by key and bucket.

use std::collections::hash_map::{Entry, HashMap};
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::algorithm::CompactState;
use crate::decision::{Charges, Outcome};

/// The slots that this process holds in a database under an engine's limits.
#[derive(Default)]
pub(super) struct HeldSlots {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the fingerprint of the key.
    batches: HashMap<u128, SmallVec<[Batch; 1]>>,
    /// The tasks that renew slots, by the time to live (in µs) and the runtime. A runtime may end or stand still, so each
    /// has a task of its own.
    tasks: HashMap<(u64, Id), AbortHandle>,
    /// The runtime of the last of them, for slots that are released outside any.
    runtime: Option<Handle>,
}

/// The slots of one key that were taken or renewed in one bucket. It does not matter which request has which of them.
struct Batch {
    /// The charge of all of them. The [mark](Outcome::mark) is that of an unused key if it is unknown whether a call has
    /// moved them. They are then charged again, and what the call has charged expires.
    outcome: Outcome,
    /// An instant before each of them was taken or renewed.
    at: Instant,
    /// An instant after which none of them was asked for.
    latest: Instant,
    /// The instant from which a call has been renewing them.
    sent_at: Option<Instant>,
    /// The slots that were released during the call.
    released: u64,
}

impl Batch {
    fn has_unknown_mark(&self) -> bool {
        self.outcome.mark == CompactState::UNUSED
    }

    /// Returns the instant from which the slots may have expired.
    fn certain_until(&self) -> Instant {
        self.at + Duration::from_micros(self.outcome.algorithm().span / 8 * 7)
    }
}

impl HeldSlots {
    /// Holds slots that were just taken. `renew` starts a task that renews the slots of a time to live, in µs, and is called
    /// unless this runtime has one.
    pub(super) fn hold(&self, taken: &[Outcome], since: Instant, renew: impl Fn(&Handle, u64) -> AbortHandle) {
        let mut held = self.lock();
        for outcome in taken {
            let mut outcome = outcome.clone();
            outcome.mark = outcome.slot_mark();
            let span = outcome.algorithm().span;
            held.add(Batch { outcome, at: since, latest: since, sent_at: None, released: 0 });
            // Without a runtime, the slots expire.
            if let Ok(runtime) = Handle::try_current()
                && held.tasks.get(&(span, runtime.id())).is_none_or(AbortHandle::is_finished)
            {
                held.tasks.retain(|_, task| !task.is_finished());
                held.tasks.insert((span, runtime.id()), renew(&runtime, span));
                held.runtime = Some(runtime);
            }
        }
    }

    /// Returns the runtime on which slots are renewed.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.lock().runtime.clone()
    }

    /// Stops holding slots. Keeps those in `released` that can be refunded now, with their marks.
    pub(super) fn release(&self, released: &mut Charges) {
        let mut held = self.lock();
        released.retain(|outcome| {
            let Entry::Occupied(mut key) = held.batches.entry(outcome.fingerprint()) else { return false };
            let batches = key.get_mut();
            // The oldest one, so that none of the requests that are left has an older slot than it took.
            let held = (0..batches.len()).filter(|at| batches[*at].released < batches[*at].outcome.cost());
            let Some(oldest) = held.min_by_key(|at| batches[*at].latest) else { return false };
            let batch = &mut batches[oldest];
            if batch.sent_at.is_some() {
                batch.released += 1;
                return false;
            }
            outcome.mark = batch.outcome.mark;
            let is_refunded = !batch.has_unknown_mark();
            batch.outcome.charge.cost -= 1;
            if batch.outcome.cost() == 0 {
                batches.remove(oldest);
            }
            if batches.is_empty() {
                key.remove();
            }
            is_refunded
        });
    }

    /// Returns the slots of a time to live that are due, which are being renewed from now on. Returns `None` if no slots
    /// of it are held, so that the task of this runtime ends.
    pub(super) fn due(&self, time_to_live: Duration) -> Option<Vec<Outcome>> {
        let (mut held, span) = (self.lock(), time_to_live.as_micros() as u64);
        let (mut due, mut is_held) = (Vec::new(), false);
        held.batches.retain(|_, batches| {
            batches.retain(|batch| {
                if batch.outcome.algorithm().span != span {
                    return true;
                }
                match batch.sent_at {
                    Some(at) if at.elapsed() < time_to_live / 4 => {
                        is_held = true;
                        return true;
                    }
                    Some(_) => {
                        // Its task has ended with its runtime, or stands still.
                        batch.outcome.charge.cost -= take(&mut batch.released);
                        batch.outcome.mark = CompactState::UNUSED;
                    }
                    None => {}
                }
                let is_left = batch.outcome.cost() > 0;
                is_held |= is_left;
                // Fresh ones can wait for the next time: most requests end before.
                let is_due = is_left && (batch.has_unknown_mark() || batch.at.elapsed() >= time_to_live / 8);
                batch.sent_at = is_due.then(Instant::now);
                if is_due {
                    due.push(batch.outcome.clone());
                }
                is_left
            });
            !batches.is_empty()
        });
        if !is_held {
            held.tasks.remove(&(span, Handle::current().id()));
        }
        is_held.then_some(due)
    }

    /// Ends the renewal of slots that began `at` an instant, and sets their mark. Returns how many may have expired, and
    /// those that were released meanwhile.
    pub(super) fn complete(&self, sent: &Outcome, mark: CompactState, at: Instant) -> Option<(u64, Option<Outcome>)> {
        let mut held = self.lock();
        let batches = held.batches.get_mut(&sent.fingerprint())?;
        let found = batches.iter().position(|batch| batch.sent_at.is_some() && batch.outcome.mark == sent.mark)?;
        let mut batch = batches.remove(found);
        batch.sent_at = None;
        let ended = take(&mut batch.released);
        batch.outcome.charge.cost -= ended;
        let is_moved = mark != sent.mark && mark != CompactState::UNUSED;
        // They may have expired before the call was answered.
        let expired = if is_moved && batch.certain_until() <= Instant::now() { batch.outcome.cost() } else { 0 };
        batch.outcome.mark = mark;
        if is_moved {
            (batch.at, batch.latest) = (at, at);
        }
        let ended = (ended > 0 && !batch.has_unknown_mark()).then(|| {
            let mut outcome = batch.outcome.clone();
            outcome.charge.cost = ended;
            outcome
        });
        held.add(batch);
        Some((expired, ended))
    }

    /// Returns the instant from which slots of these keys may have expired that were taken before `since`.
    pub(super) fn certain_until(&self, keys: &[u128], since: Instant) -> Option<Instant> {
        let held = self.lock();
        let batches = keys.iter().filter_map(|key| held.batches.get(key)).flatten();
        batches.filter(|batch| since <= batch.latest).map(Batch::certain_until).min()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Adds slots to those of the same bucket.
    fn add(&mut self, batch: Batch) {
        let key = batch.outcome.fingerprint();
        let batches = self.batches.entry(key).or_default();
        let is_same = |known: &&mut Batch| known.sent_at.is_none() && known.outcome.mark == batch.outcome.mark;
        match batches.iter_mut().find(is_same) {
            Some(known) => {
                known.outcome.charge.cost += batch.outcome.cost();
                (known.at, known.latest) = (known.at.min(batch.at), known.latest.max(batch.latest));
            }
            None if batch.outcome.cost() > 0 => batches.push(batch),
            None => {}
        }
        if batches.is_empty() {
            self.batches.remove(&key);
        }
    }
}
