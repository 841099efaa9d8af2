//! Decides one request: reads the states of its keys, and writes those that have changed, all or nothing.

use smallvec::SmallVec;

use super::backend::{CompareAndSwap, Versioned};
use super::completion::WriteFlag;
use super::database::Database;
use super::entry::{Entry, Written};
use super::error::undecodable;
use super::refund::refund_all;
use super::retry::Retries;
use super::stored_override::StoredOverride;
use crate::algorithm::{Availability, CompactState, State};
use crate::charge::{Charge, Refund};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::store::Resized;
use crate::store::denials::Invalidation;
use crate::store::evaluation::{self, KeyStates, Task};
use crate::time::Timestamp;

/// The operation that a request performs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    /// Decides, and writes the charged states.
    Decide,
    Peek,
    /// Decides as if the states were written.
    Preview,
}

/// The states of a request's entries, as its evaluation changes them.
struct EntryStates<'a>(&'a mut [Entry]);

impl KeyStates for EntryStates<'_> {
    fn state(&mut self, charge: usize) -> &mut dyn State {
        self.0[charge].after.state.as_state_mut()
    }

    fn penalty(&mut self, charge: usize) -> CompactState {
        self.0[charge].after.penalty
    }

    fn store(&mut self, _charge: usize, _remaining: u64) {}

    fn store_penalty(&mut self, charge: usize, penalty: CompactState, _availability: Availability) -> bool {
        self.0[charge].after.penalty = penalty;
        true
    }
}

/// Decides a request. Raises `writes` before the first write.
pub(super) async fn decide<B: CompareAndSwap>(
    database: &Database<B>,
    charges: &[Charge<'_>],
    operation: Operation,
    writes: &WriteFlag,
    retries: Retries,
) -> Result<Decision, StoreError> {
    let locks = match operation {
        Operation::Decide => Some(retries.wait(database.locks.lock(charges.iter().map(|charge| charge.key))).await),
        Operation::Peek | Operation::Preview => None,
    };
    // Of the requests that waited for their turn, or waited too long, one may have been denied meanwhile.
    if let Some(denial) = database.remembered(charges) {
        return Ok(denial);
    }
    let _locks = locks.transpose()?;
    let keys = charges.iter().map(|charge| (charge.spec, charge.key));
    let invalidation = Invalidation::new(&database.denials, keys, operation == Operation::Decide);
    let at = database.now().await?;
    let Found { resized, until, values } = read(database, charges, at).await?;
    let own_charges = charges;
    let charges = resized.charges(charges);
    let entry = |(charge, found): (&Charge<'_>, _)| Entry::new(database.key(charge.spec, charge.key), found, charge);
    let entries: Result<_, StoreError> = charges.iter().zip(values).map(entry).collect();
    let mut request = Request { database, charges: &charges, entries: entries?, at, writes, retries };
    let decision = match operation {
        Operation::Decide => request.commit().await?,
        Operation::Peek => request.evaluate(Task::Peek),
        Operation::Preview => request.evaluate(Task::Decide).without_charges(),
    };
    let decision = decision.with_resized(resized.specs());
    let entries = request.entries;
    match operation {
        Operation::Preview => invalidation.end(false),
        _ => invalidation.decided(own_charges, &decision, entries.into_iter().map(|entry| entry.after), until),
    }
    Ok(decision)
}

/// The values of a request's keys.
struct Found {
    /// The limits that are overridden.
    resized: Resized,
    /// The instant (in µs) at which the first of the overrides expires.
    until: u64,
    values: Vec<Option<Versioned>>,
}

/// Reads the overrides and states of a request's keys.
async fn read<B: CompareAndSwap>(
    database: &Database<B>,
    charges: &[Charge<'_>],
    at: Timestamp,
) -> Result<Found, StoreError> {
    let overridable = charges.iter().filter(|charge| charge.spec.is_overridable());
    let mut keys: Vec<String> = charges.iter().map(|charge| database.key(charge.spec, charge.key)).collect();
    keys.extend(overridable.map(|charge| database.override_key(charge.spec, charge.key)));
    let mut found = database.get_all(&keys).await?;
    let (mut sizes, mut until) = (Vec::new(), u64::MAX);
    for (key, found) in keys.iter().zip(&found).skip(charges.len()) {
        let stored = found.as_ref().map(|found| StoredOverride::from_bytes(&found.value)).transpose();
        let stored = stored.map_err(|error| undecodable(key, error))?;
        let stored = stored.filter(|stored| stored.is_valid_at(at.as_micros()));
        until = stored.filter(|stored| stored.expires_at > 0).map_or(until, |stored| until.min(stored.expires_at));
        sizes.push(stored.map(|stored| stored.size));
    }
    found.truncate(charges.len());
    let mut sizes = sizes.into_iter();
    Ok(Found { resized: Resized::new(charges, |_| sizes.next().flatten()), until, values: found })
}

struct Request<'a, B> {
    database: &'a Database<B>,
    charges: &'a [Charge<'a>],
    entries: Vec<Entry>,
    at: Timestamp,
    writes: &'a WriteFlag,
    retries: Retries,
}

impl<B: CompareAndSwap> Request<'_, B> {
    /// Decides by the states that were last read.
    fn evaluate(&mut self, task: Task) -> Decision {
        for entry in &mut self.entries {
            entry.after = entry.before.clone();
        }
        evaluation::decide(&mut EntryStates(&mut self.entries), self.charges, self.at, task)
    }

    /// Decides, and writes the states that have changed, one key after the other. All processes write in the order of
    /// keys. A key that was changed by others meanwhile is read again. If the request is then denied, or if it fails,
    /// the written charges are refunded.
    async fn commit(&mut self) -> Result<Decision, StoreError> {
        let result = self.try_commit().await;
        if result.is_err() {
            // It is unknown whether the last write succeeded, so that charge is left to expire.
            let _ = self.refund_written().await;
        }
        result
    }

    async fn try_commit(&mut self) -> Result<Decision, StoreError> {
        loop {
            self.retries.next_attempt().await?;
            let decision = self.evaluate(Task::Decide);
            if self.entries.iter().any(Entry::is_outdated) {
                self.refund_written().await?;
                self.read_again().await?;
                continue;
            }
            if self.write(&decision).await? {
                return Ok(decision);
            }
            self.read_again().await?;
        }
    }

    /// Writes the entries that have changed. Stops at the first one that another process has changed, and returns
    /// `false`.
    async fn write(&mut self, decision: &Decision) -> Result<bool, StoreError> {
        let mut order: SmallVec<[usize; 4]> = (0..self.entries.len()).collect();
        order.sort_unstable_by(|one, other| self.entries[*one].key.cmp(&self.entries[*other].key));
        for index in order {
            let entry = &mut self.entries[index];
            if entry.written.is_some() || !entry.has_changed() {
                continue;
            }
            self.writes.raise();
            if !self.database.write(&entry.key, entry.version, &entry.after, self.at).await? {
                return Ok(false);
            }
            let outcome = &decision.outcomes()[index];
            let is_charged = decision.is_charged() && outcome.is_allowed() && outcome.cost() > 0;
            entry.written = Some(Written { state: entry.after.clone(), mark: is_charged.then_some(outcome.mark) });
        }
        Ok(true)
    }

    /// Reads the time again, and the entries that were not written.
    async fn read_again(&mut self) -> Result<(), StoreError> {
        self.at = self.database.now().await?;
        let keys = self.entries.iter().filter(|entry| entry.written.is_none()).map(|entry| entry.key.clone());
        let found = self.database.get_all(&keys.collect::<Vec<_>>()).await?;
        let entries = self.entries.iter_mut().zip(self.charges).filter(|(entry, _)| entry.written.is_none());
        entries.zip(found).try_for_each(|((entry, charge), found)| entry.set(found, charge))
    }

    /// Refunds the charges that were written.
    async fn refund_written(&mut self) -> Result<(), StoreError> {
        let refunds = self.entries.iter_mut().zip(self.charges).rev().filter_map(|(entry, charge)| {
            let &Charge { spec, key, cost } = charge;
            Some(Refund { spec, key, cost, mark: entry.written.take()?.mark? })
        });
        let refunds: SmallVec<[Refund<'_>; 4]> = refunds.collect();
        refund_all(self.database, refunds).await
    }
}
