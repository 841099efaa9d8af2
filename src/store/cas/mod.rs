//! Limits on any database with compare-and-swap.
//!
//! | chapter | content |
//! | --- | --- |
//! | this module | the public type, its configuration, and the turns of requests |
//! | `request` | the decision on a request that has its turn |
//! | `database` | what a database must support, and how its rows are read, written and refunded |
//! | `operation` | how operations take turns, try again, and are completed |

mod database;
mod operation;
mod request;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use self::database::Database;
pub use self::database::{CompareAndSwap, Versioned};
pub(crate) use self::operation::KeyMap;
use self::operation::{Retries, complete};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose};
use crate::error::StoreError;
use crate::key::hash::KeyHasher;
use crate::store::{Answer, Remembering, SharedHasher, Store, StoreFuture, escape, random_identity};
use crate::time::{Clock, Timestamp};

/// Keeps limits in a database that can [compare and swap](CompareAndSwap), and decides as a
/// [`MemoryStore`](crate::MemoryStore) does, except that denials are [remembered](Self::remember_denials), and that
/// several limits are charged one after the other.
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
pub struct CasStore<B>(Remembering<Database<Arc<B>>>);

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
        let database = self.0.configure();
        database.prefix = escape(prefix).into();
        database.identity = random_identity();
        self
    }

    /// Sets the secret that keys are hashed with. Defaults to a constant that is public, of which a warning is logged.
    ///
    /// All processes that share limits must use the same secret. With a secret, those who can read the database cannot
    /// test whether a guessed key was used.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        let database = self.0.configure();
        database.hasher = SharedHasher(KeyHasher::with_secret(secret), None);
        database.identity = random_identity();
        self
    }

    /// Replaces the clock of the database, for tests. If the database expires values by its own clock, set a longer
    /// [`ttl_margin`](Self::ttl_margin), too.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        let database = self.0.configure();
        database.clock = Some(Arc::new(clock));
        database.has_remote_clock = Arc::default();
        self
    }

    /// Sets the time for which a state is kept after it has ceased to count. Defaults to 2 seconds: one for the
    /// resolution of the database's TTLs, and one so that a clock that steps back by up to a second, or that is behind
    /// that of another process, finds the usage again.
    #[must_use]
    pub fn ttl_margin(mut self, margin: Duration) -> Self {
        self.0.inner.ttl_margin = margin;
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
    pub fn remember_denials(self, span: Duration) -> Self {
        Self(self.0.remember_denials(span))
    }
}

/// Creates a store on a database that is also used otherwise.
impl<B: CompareAndSwap> From<Arc<B>> for CasStore<B> {
    fn from(backend: Arc<B>) -> Self {
        Self(Remembering::new(Database::new(backend)))
    }
}

impl<B> Clone for CasStore<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Requests take turns, and ask for remembered denials once more when they have theirs.
impl<B: CompareAndSwap> Store for CasStore<B> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }

    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        StoreFuture::pending(decide_request(self.0.clone(), charges.clone(), purpose, longest_wait))
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        completed(self.0.refund(charges))
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        completed(self.0.reset(charges))
    }

    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        let renewed = self.0.renew(charges)?;
        Some(StoreFuture::pending(complete(renewed, Arc::new(AtomicBool::new(true)), async |_| {})))
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        self.0.decide_at_once(charges, purpose)
    }
}

/// Returns the future of an operation that is completed even if its caller gives up before it writes.
fn completed(operation: StoreFuture<()>) -> StoreFuture<()> {
    StoreFuture::pending(complete(operation, Arc::new(AtomicBool::new(true)), ready))
}

/// Decides a request. One of several limits is completed if its caller gives up, and then refunded.
async fn decide_request<B: CompareAndSwap>(
    mut store: Remembering<Database<Arc<B>>>,
    charges: Charges,
    purpose: Purpose,
    longest_wait: Duration,
) -> Result<Answer, StoreError> {
    if purpose != Purpose::Take || charges.len() < 2 {
        return decide_in_turn(store, charges, purpose, longest_wait).await;
    }
    store.inner.writes = Arc::default();
    let (writes, refunding, mut unused) = (store.inner.writes.clone(), store.clone(), charges.clone());
    let refund = async move |answer: Answer| {
        let at = answer.finish(&mut unused);
        let receipt = Decision::of(at, DecidedBy::Store, true, 0, unused).into_receipt();
        let _ = refunding.refund(&receipt.charged).await;
    };
    complete(decide_in_turn(store, charges, purpose, longest_wait), writes, refund).await
}

/// Waits until no other request of this process decides one of these keys, then decides.
async fn decide_in_turn<B: CompareAndSwap>(
    store: Remembering<Database<Arc<B>>>,
    mut charges: Charges,
    purpose: Purpose,
    longest_wait: Duration,
) -> Result<Answer, StoreError> {
    let retries = Retries::new(longest_wait)?;
    // Requests that write nothing need no turn.
    let keys = charges.iter().filter(|_| purpose == Purpose::Take).map(|outcome| outcome.key());
    let locks = retries.wait(store.inner.locks.lock(keys)).await;
    // Of the requests that waited for their turn, or waited too long, one may have been denied meanwhile.
    if let Some(at) = store.decide_at_once(&mut charges, purpose) {
        return Ok(Answer::with_charges(at, charges));
    }
    // Without its turn, a request makes no strike, but it is denied. (Denials without strikes are remembered.)
    if locks.is_err() && charges.have_penalties() {
        let at = store.decide(&mut charges, Purpose::Peek, Duration::ZERO).await?.finish(&mut charges);
        if charges.iter().any(Outcome::denies) {
            return Ok(Answer::with_charges(at, charges));
        }
    }
    let _locks = locks?;
    store.decide(&mut charges, purpose, retries.left()).await
}
