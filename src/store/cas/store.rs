//! The public type of the store, and its configuration.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::backend::CompareAndSwap;
use super::completion::{WriteFlag, complete};
use super::database::Database;
use super::refund::{refund_all, refund_decision};
use super::request::{self, Operation};
use super::retry::Retries;
use crate::charge::{Charge, OwnedCharge, Refund};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::{KeyHash, KeyHasher};
use crate::limit_spec::LimitSpec;
use crate::store::denials::{DenialCache, Invalidation};
use crate::store::key_name::{DEFAULT_SECRET, escape};
use crate::store::override_store::OverrideStore;
use crate::store::{Store, StoreFuture};

/// Keeps limits in a database that can [compare and swap](CompareAndSwap), and decides exactly as a
/// [`MemoryStore`](crate::MemoryStore) does.
///
/// This crate runs the algorithms: it reads the states of a request's keys, decides, and writes the changed states. A
/// decision takes one read and one write for each limit that it charges; a denial takes only the read, and is then
/// [remembered](Self::remember_denials).
///
/// Requests of one process for the same key take turns; those that wait are denied as soon as an equal one is. If
/// another process has changed a key meanwhile, the request reads the time and the key again: at once after the first
/// lost races, then after random pauses of up to 4 ms. It waits for its turn and tries again for at most half of its
/// [deadline](crate::Builder::deadline), so that the other half is left for the last attempt. After that it fails with
/// [`Contention`](crate::StoreErrorKind::Contention), which opens no circuit breaker. Refunds, which have no deadline,
/// end after 64 attempts.
///
/// Several limits are charged all or nothing, one key after the other in the order of their names. If a later limit
/// turns out to be exhausted, or if the caller gives up, for instance at a deadline, the earlier charges are refunded.
/// Until then, other requests may be denied unnecessarily, but never allowed wrongly.
///
/// [The guide](crate::guide::stores) shows how to write a store.
pub struct CasStore<B> {
    pub(super) database: Database<B>,
    hasher: KeyHasher,
}

impl<B: CompareAndSwap> CasStore<B> {
    /// Creates a store on a database.
    #[must_use]
    pub fn new(backend: B) -> Self {
        Self { database: Database::new(backend), hasher: KeyHasher::with_secret(DEFAULT_SECRET) }
    }

    /// Sets the prefix of all key names. Defaults to `ratelimit`. Stores with different prefixes share nothing. All
    /// characters but ASCII letters, digits and `-._/` are percent-encoded.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.database.prefix = escape(prefix).into();
        self.database.denials = DenialCache::new(self.database.denials.lifetime());
        self
    }

    /// Sets the secret that keys are hashed with. Defaults to a constant that is public.
    ///
    /// All processes that share limits must use the same secret. With a secret, those who can read the database cannot
    /// test whether a guessed key was used.
    #[must_use]
    pub fn secret(self, secret: [u8; 16]) -> Self {
        Self { hasher: KeyHasher::with_secret(secret), ..self }
    }

    /// Sets the time for which a state is kept after it has ceased to count. Defaults to 1 second. The margin covers
    /// the resolution of the database's TTLs, and differences between its clock and [`now`](CompareAndSwap::now).
    #[must_use]
    pub fn ttl_margin(mut self, margin: Duration) -> Self {
        self.database.ttl_margin = margin;
        self
    }

    /// Sets for how long a denial is repeated without calling the database again. Defaults to one second;
    /// [`Duration::ZERO`] turns this off.
    ///
    /// A denied key is denied locally until its `retry_after` has passed, exactly, so that a flood of requests for one
    /// key does not reach the database. Changes by this process take effect at once: a charge, a refund, a reset, an
    /// override, a smaller cost. Those by other processes take effect when the database is called again, so this
    /// duration bounds the delay. Denials that count for a [`Penalty`](crate::Penalty) are not remembered, nor are those
    /// of more than eight limits.
    ///
    /// At most 8,192 denials are cached, in less than 5 MB, or 20 MB if all are of eight limits. Clones of this store share
    /// them.
    #[must_use]
    pub fn remember_denials(mut self, span: Duration) -> Self {
        self.database.denials = DenialCache::new(span);
        self
    }

    fn run(&self, charges: &[Charge<'_>], operation: Operation) -> StoreFuture<Decision> {
        if let Some(denial) = self.database.remembered(charges) {
            return StoreFuture::remembered(denial);
        }
        let database = self.database.clone();
        let charges: Vec<OwnedCharge> = charges.iter().map(OwnedCharge::from).collect();
        if charges.len() > 1 && operation == Operation::Decide {
            return StoreFuture::pending(decide_several(database, charges));
        }
        StoreFuture::pending(async move {
            let charges: Vec<_> = charges.iter().map(OwnedCharge::as_charge).collect();
            request::decide(&database, &charges, operation, &WriteFlag::default(), Retries::new()).await
        })
    }
}

/// Decides a request of several limits. If the caller gives up, refunds the charges in the background.
async fn decide_several<B: CompareAndSwap>(
    database: Database<B>,
    charges: Vec<OwnedCharge>,
) -> Result<Decision, StoreError> {
    let (charged_database, charged) = (database.clone(), charges.clone());
    let writes = WriteFlag::default();
    let (raised, retries) = (writes.clone(), Retries::new());
    let decide = async move {
        let charges: Vec<_> = charges.iter().map(OwnedCharge::as_charge).collect();
        request::decide(&database, &charges, Operation::Decide, &raised, retries).await
    };
    let undo = async move |decision: Decision| {
        let charges: Vec<_> = charged.iter().map(OwnedCharge::as_charge).collect();
        // Charges that cannot be refunded stay.
        let _ = refund_decision(&charged_database, &charges, &decision).await;
    };
    complete(decide, writes, undo).await
}

impl<B> Clone for CasStore<B> {
    fn clone(&self) -> Self {
        Self { database: self.database.clone(), hasher: self.hasher }
    }
}

impl<B: CompareAndSwap> fmt::Debug for CasStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CasStore").field("database", &self.database).finish_non_exhaustive()
    }
}

impl<B: CompareAndSwap> Store for CasStore<B> {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, Operation::Decide)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, Operation::Peek)
    }

    fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, Operation::Preview)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let database = self.database.clone();
        let owned: Vec<_> =
            refunds.iter().map(|refund| (refund.spec.clone(), refund.key, refund.cost, refund.mark)).collect();
        let refund = async move {
            let refunds = owned.iter().map(|(spec, key, cost, mark)| Refund::new(spec, *key, *cost, *mark));
            refund_all(&database, refunds.collect::<Vec<_>>()).await
        };
        StoreFuture::pending(complete(refund, WriteFlag::raised(), ready))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let database = self.database.clone();
        let change = Invalidation::new(&database.denials, keys.iter().copied(), true);
        let keys: Vec<String> = keys.iter().map(|(spec, key)| database.key(spec, *key)).collect();
        let reset = async move {
            let _change = change;
            let mut result = Ok(());
            for key in keys {
                result = result.and(database.backend.delete(&key).await);
            }
            result
        };
        StoreFuture::pending(complete(reset, WriteFlag::raised(), ready))
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        self.database.remembered(charges)
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(self)
    }
}
