//! Limits on any database with compare-and-swap.

mod backend;
mod error;
mod overrides;
mod request;
mod retry;
mod stored_override;
mod turns;

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

pub use self::backend::{CompareAndSwap, Versioned};
use self::turns::Turns;
use super::evaluation::Task;
use super::override_store::LONGEST_OVERRIDE;
use super::{Charge, KeyHash, KeyHasher, LimitSpec, OverrideStore, OwnedCharge, Refund, Store, StoreFuture};
use crate::algorithm::StoredKey;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::time::Timestamp;

/// Keeps limits in a database that can [compare and swap](CompareAndSwap), and decides exactly as a
/// [`MemoryStore`](crate::MemoryStore) does.
///
/// This crate runs the algorithms: it reads the states of a request's keys, decides, and writes what has changed, unless
/// another process has changed it since. Then it reads that key again, up to 32 times with growing pauses. A decision
/// takes one read and one write for each limit that it charges; a denial takes only the read.
///
/// Several limits are charged all or nothing, one key after the other in the order of their names. If a later one turns
/// out to be used up meanwhile, what was charged is given back. For that moment other requests can be denied, but never
/// admitted, by mistake.
///
/// See `docs/stores.md` for how to write a store.
pub struct CasStore<B> {
    backend: Arc<B>,
    prefix: Arc<str>,
    hasher: KeyHasher,
    ttl_margin: Duration,
    turns: Arc<Turns>,
}

/// The start of the names of keys.
const PREFIX: &str = "ratelimit";

/// The secret of stores that were not given one.
const DEFAULT_SECRET: [u8; 16] = *b"tower-ratelimit\0";

impl<B: CompareAndSwap> CasStore<B> {
    /// Creates a store on a database.
    #[must_use]
    pub fn new(backend: B) -> Self {
        Self {
            backend: Arc::new(backend),
            prefix: PREFIX.into(),
            hasher: KeyHasher::with_secret(DEFAULT_SECRET),
            ttl_margin: Duration::from_secs(1),
            turns: Arc::new(Turns::new()),
        }
    }

    /// Sets what the names of keys start with. Defaults to `ratelimit`. Stores with different prefixes share nothing.
    /// All characters but ASCII letters, digits and `-._/` are percent-encoded.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: escape(prefix).into(), ..self }
    }

    /// Sets the secret that keys are hashed with: the same for all processes that share limits. Without one, those who
    /// can read the database can find out whether a key that they guess was used.
    #[must_use]
    pub fn secret(self, secret: [u8; 16]) -> Self {
        Self { hasher: KeyHasher::with_secret(secret), ..self }
    }

    /// Sets how much longer than it counts a state is kept. Defaults to 1 second. The margin covers the resolution of
    /// the database's TTLs, and differences between its clock and [`now`](CompareAndSwap::now).
    #[must_use]
    pub fn ttl_margin(self, margin: Duration) -> Self {
        Self { ttl_margin: margin, ..self }
    }

    /// Returns the name of the value that holds a key's states under a limit.
    fn key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        format!("{}:{:032x}", self.prefix, spec.fingerprint(key))
    }

    /// Returns the name of the value that holds a key's override of a limit.
    fn override_key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        self.key(spec, key) + ":override"
    }

    /// Writes the states of a key, unless they have changed. Returns whether they were written.
    async fn write(
        &self,
        key: &str,
        version: Option<u64>,
        stored: &StoredKey,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let counts_for = Duration::from_micros(stored.expires_at().saturating_sub(at.as_micros()));
        let ttl = counts_for.min(LONGEST_OVERRIDE) + self.ttl_margin;
        self.backend.compare_and_swap(key, version, &stored.to_bytes(), ttl).await
    }
}

/// Percent-encodes all characters but those that every database accepts in keys.
fn escape(prefix: &str) -> String {
    let mut escaped = String::new();
    for byte in prefix.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}

impl<B> Clone for CasStore<B> {
    fn clone(&self) -> Self {
        let Self { backend, prefix, hasher, ttl_margin, turns } = self;
        let (backend, prefix, turns) = (backend.clone(), prefix.clone(), turns.clone());
        Self { backend, prefix, hasher: *hasher, ttl_margin: *ttl_margin, turns }
    }
}

impl<B: CompareAndSwap> fmt::Debug for CasStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CasStore")
            .field("backend", &self.backend)
            .field("prefix", &self.prefix)
            .field("ttl_margin", &self.ttl_margin)
            .finish_non_exhaustive()
    }
}

impl<B: CompareAndSwap> Store for CasStore<B> {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, Task::Decide)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, Task::Peek)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let owned: Vec<_> =
            refunds.iter().map(|refund| (refund.spec.clone(), refund.key, refund.cost, refund.mark)).collect();
        let store = self.clone();
        StoreFuture::pending(async move {
            for (spec, key, cost, mark) in &owned {
                request::refund(&store, &Refund { spec, key: *key, cost: *cost, mark: *mark }).await?;
            }
            Ok(())
        })
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let keys: Vec<String> = keys.iter().map(|(spec, key)| self.key(spec, *key)).collect();
        let store = self.clone();
        StoreFuture::pending(async move {
            for key in keys {
                store.backend.delete(&key).await?;
            }
            Ok(())
        })
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(self)
    }
}

impl<B: CompareAndSwap> CasStore<B> {
    fn run(&self, charges: &[Charge<'_>], task: Task) -> StoreFuture<Decision> {
        let (store, owned): (_, Vec<OwnedCharge>) = (self.clone(), charges.iter().map(OwnedCharge::from).collect());
        StoreFuture::pending(async move {
            let charges: Vec<_> = owned.iter().map(OwnedCharge::as_charge).collect();
            request::decide(&store, &charges, task).await
        })
    }
}
