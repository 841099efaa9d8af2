//! Limits on any database with compare-and-swap.
//!
//! | chapter | content |
//! | --- | --- |
//! | this module | the public type and its configuration |
//! | `database` | what a database must support, and how requests read and write its rows |
//! | `decide` | the decision on a request, and refunds |
//! | `operation` | how operations take turns, try again, and are completed |

mod database;
mod decide;
mod operation;
#[cfg(test)]
mod tests;

use std::future::{Future, ready};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use self::database::Database;
pub use self::database::{CompareAndSwap, Versioned};
use self::decide::{decide_request, refund_all};
pub(crate) use self::operation::KeyLocks;
use self::operation::complete;
use crate::error::StoreError;
use crate::key::hash::KeyHasher;
use crate::store::decision::Cell;
use crate::store::denials::Denials;
use crate::store::{Answer, Override, OverrideOperation, Purpose, Store, StoreFuture, escape};
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
        self.0.hasher = self.0.hasher.of_own_store();
        self.without_denials()
    }

    /// Sets the secret that keys are hashed with. Defaults to a constant that is public.
    ///
    /// All processes that share limits must use the same secret. With a secret, those who can read the database cannot
    /// test whether a guessed key was used.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.0.hasher = KeyHasher::with_secret(secret).of_own_store();
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

    /// Sets the time for which a state is kept after it has ceased to count. Defaults to 1 second. The margin covers
    /// the resolution of the database's TTLs, and differences between its clock and [`now`](CompareAndSwap::now).
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
        self.0.hasher
    }

    fn decide(&self, cells: &mut [Cell], purpose: Purpose) -> StoreFuture<Answer> {
        match self.0.remembered(cells) {
            Some(at) => StoreFuture::ready(Ok(Answer::new(at).from_memory())),
            None => StoreFuture::pending(decide_request(self.0.clone(), cells.to_vec(), purpose)),
        }
    }

    fn refund(&self, cells: &[Cell]) -> StoreFuture<()> {
        let (database, cells) = (self.0.clone(), cells.to_vec());
        completed(async move { refund_all(&database, &cells).await })
    }

    fn reset(&self, cells: &[Cell]) -> StoreFuture<()> {
        let database = self.0.clone();
        let change = database.denials.begin(cells, Purpose::Take);
        let keys: Vec<String> = cells.iter().map(|cell| database.key(cell)).collect();
        completed(async move {
            let _change = change;
            let mut result = Ok(());
            for key in keys {
                result = result.and(database.backend.delete(&key).await);
            }
            result
        })
    }

    fn remembered(&self, cells: &mut [Cell]) -> Option<Timestamp> {
        self.0.remembered(cells)
    }

    fn access_override(&self, cell: &Cell, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (database, cell) = (self.0.clone(), cell.clone());
        let purpose = if operation == OverrideOperation::Get { Purpose::Peek } else { Purpose::Take };
        let change = database.denials.begin(slice::from_ref(&cell), purpose);
        StoreFuture::pending(async move {
            let _change = change;
            database.access_override(&cell, operation).await
        })
    }
}

/// Returns the future of an operation that is completed even if its caller gives up before it writes.
fn completed(operation: impl Future<Output = Result<(), StoreError>> + Send + 'static) -> StoreFuture<()> {
    StoreFuture::pending(complete(operation, Arc::new(AtomicBool::new(true)), ready))
}
