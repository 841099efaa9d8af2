//! Limits on any database with compare-and-swap.
//!
//! | chapter | content |
//! | --- | --- |
//! | this module | the public type, its configuration, and the decision on a request |
//! | `database` | what a database must support, and how its rows are read, written and refunded |
//! | `operation` | how operations take turns, try again, and are completed |

mod database;
mod operation;
#[cfg(test)]
mod tests;

use std::future::{Future, ready};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::database::{CompareAndSwap, Versioned};
use self::database::{Database, refunded};
pub(crate) use self::operation::KeyLocks;
use self::operation::{Retries, complete};
use crate::algorithm::KeyState;
use crate::decision::{Charges, Outcome, Purpose, decide};
use crate::error::StoreError;
use crate::key::hash::KeyHasher;
use crate::store::denials::Denials;
use crate::store::{Answer, Override, OverrideOperation, SharedHasher, Store, StoreFuture, escape};
use crate::time::{Clock, Timestamp};

/// Keeps limits in a database that can [compare and swap](CompareAndSwap), and decides exactly as a
/// [`MemoryStore`](crate::MemoryStore) does.
///
/// This crate runs the algorithms: it reads the states of a request's keys, decides, and writes the changed states. A
/// decision takes one read and one write for each limit that it charges; a denial takes only the read, and is then
/// [remembered](Self::remember_denials).
///
/// Requests of one process for the same key take turns; those that wait are denied as soon as an equal one is. If
/// another process has changed a key meanwhile, the request reads the time and its keys again: at once after the first
/// lost races, then after random pauses of up to 4 ms. It waits for its turn and tries again for at most half of its
/// [deadline](crate::Builder::deadline), so that the other half is left for the last attempt. After that it fails with
/// [`Contention`](crate::StoreErrorKind::Contention), which opens no circuit breaker. The refund of a charge, which
/// has no deadline, is tried for 5 seconds.
///
/// Several limits are charged all or nothing, one key after the other in the order of their names. If a later limit
/// turns out to be exhausted, or if the caller gives up, for instance at a deadline, the earlier charges are refunded.
/// Until then, other requests may be denied unnecessarily, but never allowed wrongly.
///
/// [The guide](crate::guide::stores) shows how to write a store.
#[derive(Debug)]
pub struct CasStore<B>(Database<Arc<B>>);

impl<B: CompareAndSwap> CasStore<B> {
    /// Creates a store on a database.
    #[must_use]
    pub fn new(backend: B) -> Self {
        Self::from(Arc::new(backend))
    }

    /// Sets the prefix of all key names. Defaults to `ratelimit`. Stores with different prefixes share nothing. All
    /// characters but ASCII letters, digits and `-._/` are percent-encoded.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.0.prefix = escape(prefix).into();
        self.0.hasher.0 = self.0.hasher.0.of_own_store();
        self.without_denials()
    }

    /// Sets the secret that keys are hashed with. Defaults to a constant that is public, of which a warning is logged.
    ///
    /// All processes that share limits must use the same secret. With a secret, those who can read the database cannot
    /// test whether a guessed key was used.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.0.hasher = SharedHasher(KeyHasher::with_secret(secret).of_own_store(), None);
        self.without_denials()
    }

    /// Replaces the clock of the database, for tests. If the database expires values by its own clock, set a longer
    /// [`ttl_margin`](Self::ttl_margin), too.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.0.clock = Some(Arc::new(clock));
        self.0.has_remote_clock = Arc::default();
        self.without_denials()
    }

    /// Sets the time for which a state is kept after it has ceased to count. Defaults to 2 seconds: one for the
    /// resolution of the database's TTLs, and one so that a clock that steps back by up to a second, or that is behind
    /// that of another process, finds the usage again.
    #[must_use]
    pub fn ttl_margin(mut self, margin: Duration) -> Self {
        self.0.ttl_margin = margin;
        self
    }

    /// Sets for how long a denial is repeated without calling the database again. Defaults to one second;
    /// [`Duration::ZERO`] turns this off.
    ///
    /// A denied key is denied locally until its `retry_after` has passed, exactly, so that a flood of requests for one
    /// key does not reach the database. Changes by this process take effect at once: a charge, a refund, a reset, an
    /// override, a smaller cost. Those by other processes take effect when the database is called again, so this
    /// duration bounds the delay. Denials that count for a [`Penalty`](crate::Penalty) are not remembered, nor are
    /// those of more than eight limits and penalties.
    ///
    /// At most 8,192 denials are cached, in less than 5 MB, or 20 MB if all are of eight limits. Clones of this store
    /// share them.
    #[must_use]
    pub fn remember_denials(mut self, span: Duration) -> Self {
        self.0.denials = Denials::new(span);
        self
    }

    /// Forgets all denials, which the other clones keep.
    fn without_denials(self) -> Self {
        let lifetime = self.0.denials.lifetime();
        self.remember_denials(lifetime)
    }
}

/// Creates a store on a database that is also used otherwise.
impl<B: CompareAndSwap> From<Arc<B>> for CasStore<B> {
    fn from(backend: Arc<B>) -> Self {
        Self(Database::new(backend))
    }
}

impl<B> Clone for CasStore<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: CompareAndSwap> Store for CasStore<B> {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher.get()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        StoreFuture::pending(decide_request(self.0.clone(), charges.clone(), purpose, longest_wait))
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let (database, charges) = (self.0.clone(), charges.clone());
        completed(async move { database.refund(&charges).await })
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        let database = self.0.clone();
        let change = database.denials.begin(charges, Purpose::Take);
        let keys: Vec<String> = charges.iter().map(|outcome| database.key(outcome)).collect();
        completed(async move {
            let _change = change;
            let mut result = Ok(());
            for key in keys {
                result = result.and(database.backend.delete(&key).await);
            }
            result
        })
    }

    fn decide_at_once(&self, charges: &mut Charges, _: Purpose) -> Option<Timestamp> {
        self.0.remembered(charges)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (database, charge) = (self.0.clone(), charges[0].charge);
        let purpose = if operation == OverrideOperation::Get { Purpose::Peek } else { Purpose::Take };
        let change = database.denials.begin(&charges[..1], purpose);
        StoreFuture::pending(async move {
            let _change = change;
            database.access_override(&charge, operation).await
        })
    }
}

/// Returns the future of an operation that is completed even if its caller gives up before it writes.
fn completed(operation: impl Future<Output = Result<(), StoreError>> + Send + 'static) -> StoreFuture<()> {
    StoreFuture::pending(complete(operation, Arc::new(AtomicBool::new(true)), ready))
}

/// Decides a request. One of several limits is completed if its caller gives up, and then taken back.
async fn decide_request<B: CompareAndSwap>(
    database: Database<Arc<B>>,
    charges: Charges,
    purpose: Purpose,
    longest_wait: Duration,
) -> Result<Answer, StoreError> {
    let writes = Arc::new(AtomicBool::new(false));
    let limits = charges.iter().filter(|outcome| !outcome.is_of_penalty()).count();
    let written = charges.iter().map(|_| None).collect();
    let retries = Retries::new(longest_wait)?;
    let request = Request { database, charges, purpose, writes: writes.clone(), written, denial: None, retries };
    let (answer, _) = if purpose == Purpose::Take && limits > 1 {
        complete(request.decide_in_turn(), writes, async |(_, mut unused)| unused.take_back().await).await?
    } else {
        request.decide_in_turn().await?
    };
    Ok(answer)
}

/// A request under way.
///
/// A request has a row for each limit and each penalty, but the database writes one row at a time. So a request reads
/// all its rows, decides on copies, and writes the rows that have changed, in the order of their keys, as all processes
/// do. A denial changes no row but those of strikes.
///
/// If another process has changed a row meanwhile, the request starts again with fresh rows and the present time. It
/// takes what it has written out of the copies before it decides: a row that is still as the request has left it
/// becomes as it was before, strikes included; from another one, the charge is refunded, and a strike stays, because
/// others have been decided by it. So the rows that are written next are those to which the new decision makes a
/// difference: a charge that still stands is not written twice, and if the request is now denied, its charges are taken
/// back.
///
/// A denial stands even if nothing can be written: its strikes do not count then.
struct Request<B> {
    database: Database<Arc<B>>,
    charges: Charges,
    purpose: Purpose,
    /// Set before the first write.
    writes: Arc<AtomicBool>,
    /// What the request has written under each of its keys.
    written: Vec<Option<Written>>,
    /// The denial by the last attempt, whose strikes could not be written.
    denial: Option<(Timestamp, Charges)>,
    retries: Retries,
}

/// The change of a row that a request has made.
struct Written {
    outcome: Outcome,
    before: KeyState,
    after: KeyState,
}

impl<B: CompareAndSwap> Request<B> {
    /// Waits until no other request of this process decides one of these keys, then decides.
    async fn decide_in_turn(mut self) -> Result<(Answer, Self), StoreError> {
        // Requests that write nothing need no turn.
        let keys = self.charges.iter().filter(|_| self.purpose == Purpose::Take).map(|outcome| outcome.key());
        let locks = self.retries.wait(self.database.locks.lock(keys)).await;
        // Of the requests that waited for their turn, or waited too long, one may have been denied meanwhile.
        if let Some(at) = self.database.remembered(&mut self.charges) {
            return Ok((Answer::with_charges(at, mem::take(&mut self.charges)), self));
        }
        // Without its turn, a request makes no strike, but it is denied. (Denials without strikes are remembered.)
        if locks.is_err() && self.charges.iter().any(|outcome| outcome.is_of_penalty()) {
            self.purpose = Purpose::Peek;
            let at = self.decide().await?;
            if self.charges.iter().any(Outcome::denies) {
                return Ok((Answer::with_charges(at, mem::take(&mut self.charges)), self));
            }
        }
        let _locks = locks?;
        let mut decided = self.decide().await;
        if decided.is_err() {
            self.take_back().await;
            if let Some((at, charges)) = self.denial.take() {
                (decided, self.charges) = (Ok(at), charges);
            }
        }
        Ok((Answer::with_charges(decided?, mem::take(&mut self.charges)), self))
    }

    /// Refunds the charges that were written. Those that cannot be refunded stay, as strikes do, and so does one of
    /// which it is unknown whether it was written.
    async fn take_back(&mut self) {
        let written = self.written.iter_mut().filter_map(Option::take).map(|written| written.outcome);
        let charges: Vec<Outcome> = written.filter(|outcome| !outcome.is_of_penalty()).collect();
        let _ = self.database.refund(&charges).await;
    }

    async fn decide(&mut self) -> Result<Timestamp, StoreError> {
        let change = self.database.denials.begin(&self.charges, self.purpose);
        'attempts: loop {
            self.retries.next_attempt().await?;
            let at = self.database.now().await?;
            let now = at.as_micros();
            let mut charges = self.charges.clone();
            let (rows, until) = self.database.read(&mut charges, now).await?;
            let before: Vec<KeyState> =
                rows.iter().zip(&self.written).map(|(row, written)| without(written, &row.state, now)).collect();
            let mut after = before.clone();
            decide(&mut charges, &mut after[..], |_| now, self.purpose);
            let is_denied = charges.iter().any(Outcome::denies);
            self.denial = None;
            let had_written = self.written.iter().any(Option::is_some);
            let mut order: Vec<usize> = (0..rows.len()).filter(|_| self.purpose == Purpose::Take).collect();
            order.sort_unstable_by_key(|index| &rows[*index].key);
            for index in order {
                let (row, found, left) = (&rows[index], &before[index], &after[index]);
                let last = self.written[index].take();
                if *left != row.state {
                    self.writes.store(true, Ordering::Relaxed);
                    let write = self.database.write(row, left, at);
                    let is_written = match is_denied {
                        true => self.retries.wait(write).await.unwrap_or_else(Err),
                        false => write.await,
                    };
                    if !matches!(is_written, Ok(true)) {
                        self.denial = is_denied.then(|| (at, without_strikes(&charges, before.clone(), now)));
                        is_written?;
                        // Another process has changed it.
                        self.written[index] = last;
                        continue 'attempts;
                    }
                }
                if left != found {
                    let (outcome, before, after) = (charges[index].clone(), found.clone(), left.clone());
                    self.written[index] = Some(Written { outcome, before, after });
                }
            }
            // Others may have been denied because of a charge that was taken back.
            if !had_written {
                change.decided(&charges, now, until);
            }
            self.charges = charges;
            return Ok(at);
        }
    }
}

/// Returns denied charges as answered for these states if no strike counts.
fn without_strikes(charges: &Charges, mut states: Vec<KeyState>, now: u64) -> Charges {
    let mut charges = charges.clone();
    charges.iter_mut().for_each(|outcome| *outcome = outcome.charge.into());
    decide(&mut charges, &mut states[..], |_| now, Purpose::Peek);
    charges
}

/// Returns the state of a row without what the request has written.
fn without(written: &Option<Written>, found: &KeyState, now: u64) -> KeyState {
    match written {
        Some(written) if written.after == *found => written.before.clone(),
        Some(written) => refunded(found, &written.outcome, now),
        None => found.clone(),
    }
}
