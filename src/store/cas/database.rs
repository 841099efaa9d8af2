//! The database of a store, with the names and lifetimes of its values.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::backend::{CompareAndSwap, Versioned};
use super::key_locks::KeyLocks;
use crate::algorithm::StoredKey;
use crate::charge::Charge;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;
use crate::store::denials::{DenialCache, Invalidation};
use crate::store::key_name::DEFAULT_PREFIX;
use crate::store::override_store::LONGEST_OVERRIDE;
use crate::time::Timestamp;

/// A database, and the names and lifetimes of values in it.
#[derive(Debug)]
pub(super) struct Database<B> {
    pub(super) backend: Arc<B>,
    pub(super) locks: Arc<KeyLocks>,
    pub(super) denials: Arc<DenialCache>,
    /// Whether a request had to wait for the clock, so that it is not read to repeat denials.
    has_remote_clock: Arc<AtomicBool>,
    pub(super) prefix: Arc<str>,
    /// The time for which a value is kept after it has ceased to count.
    pub(super) ttl_margin: Duration,
}

impl<B: CompareAndSwap> Database<B> {
    pub(super) fn new(backend: B) -> Self {
        Self {
            backend: Arc::new(backend),
            locks: Arc::default(),
            denials: DenialCache::new(DenialCache::LIFETIME),
            has_remote_clock: Arc::default(),
            prefix: DEFAULT_PREFIX.into(),
            ttl_margin: Duration::from_secs(1),
        }
    }

    /// Returns the decision on a request that the database is certain to deny.
    pub(super) fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        self.denials.deny(charges, self.local_now())
    }

    /// Begins a change of a key, which ends its cached denials when the result is dropped.
    pub(super) fn change(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> Invalidation {
        Invalidation::new(&self.denials, [(spec, key)], true)
    }

    /// Returns the current time.
    pub(super) async fn now(&self) -> Result<Timestamp, StoreError> {
        let mut now = pin!(self.backend.now());
        let now = poll_fn(|context| {
            let now = now.as_mut().poll(context);
            if now.is_pending() {
                self.has_remote_clock.store(true, Ordering::Relaxed);
            }
            now
        });
        now.await
    }

    /// Returns the current time (in µs), if the clock can be read without waiting.
    fn local_now(&self) -> Option<u64> {
        if self.has_remote_clock.load(Ordering::Relaxed) {
            return None;
        }
        match pin!(self.backend.now()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(now) => Some(now.ok()?.as_micros()),
            Poll::Pending => {
                self.has_remote_clock.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Returns the name of the value that holds a key's states under a limit.
    pub(super) fn key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        format!("{}:{:032x}", self.prefix, spec.fingerprint(key))
    }

    /// Returns the name of the value that holds a key's override of a limit.
    pub(super) fn override_key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        self.key(spec, key) + ":override"
    }

    /// Returns the values of several keys, in their order.
    pub(super) async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let found = self.backend.get_all(keys).await?;
        if found.len() != keys.len() {
            let (keys, values) = (keys.len(), found.len());
            return Err(StoreError::new(format!("`get_all` returned {values} values for {keys} keys")));
        }
        Ok(found)
    }

    /// Writes the states of a key, unless they have changed. Returns whether they were written.
    pub(super) async fn write(
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

impl<B> Clone for Database<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            locks: self.locks.clone(),
            denials: self.denials.clone(),
            has_remote_clock: self.has_remote_clock.clone(),
            prefix: self.prefix.clone(),
            ttl_margin: self.ttl_margin,
        }
    }
}
