//! Who remembers: the [`Store`] trait, and the [`MemoryStore`].
//!
//! A store is handed the charges of one request: which limits apply, under which keys, at what
//! cost. It decides them together, at one instant: all are taken or none.

mod answer;
mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::sync::Arc;

pub use answer::Answer;
pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisStore};

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Subject};
pub use crate::hash::{KeyHash, KeyHasher};
use crate::record::Record;

/// Remembers what keys have used, and decides by it.
///
/// For now, a store of your own can wrap another (to count, to log, to fail on purpose); what it
/// takes to write one from scratch is not public yet.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How keys are to be hashed for this store.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request, and takes its charges from all its limits or from none. No two of the
    /// charges name one limit.
    fn acquire(&self, charges: &[Charge<'_>]) -> Answer<Decision>;

    /// Decides a request as [`acquire`](Self::acquire) would now, and takes nothing.
    fn peek(&self, charges: &[Charge<'_>]) -> Answer<Decision>;

    /// What [`acquire`](Self::acquire) and [`peek`](Self::peek) would decide without asking anyone: a
    /// denial that is remembered. It is told even while a [circuit breaker](crate::CircuitBreaker) is
    /// open. None, unless a store says otherwise: one that wraps another asks that.
    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let _ = charges;
        None
    }

    /// Gives back what still counts of earlier charges.
    fn refund(&self, refunds: &[Refund<'_>]) -> Answer<()>;

    /// Forgets keys: it is as if they had never been seen.
    fn reset(&self, keys: &[(&Arc<Terms>, KeyHash)]) -> Answer<()>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn hasher(&self) -> KeyHasher {
        (**self).hasher()
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        (**self).acquire(charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        (**self).peek(charges)
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        (**self).remembered(charges)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> Answer<()> {
        (**self).refund(refunds)
    }

    fn reset(&self, keys: &[(&Arc<Terms>, KeyHash)]) -> Answer<()> {
        (**self).reset(keys)
    }
}

/// What a store needs to know of a limit.
#[derive(Clone, Debug)]
pub struct Terms {
    name: Arc<str>,
    hash: KeyHash,
    index: u16,
    algorithm: Algorithm,
    capacity: u64,
}

impl Terms {
    /// The terms of the limit `name`, the `index`th of its limiter, on a store that hashes keys by
    /// `hasher`.
    pub(crate) fn new(name: Arc<str>, index: u16, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        // What is remembered under one algorithm, or in one period, means nothing under another.
        let cycle = algorithm.cycle().to_le_bytes();
        let identity = [algorithm.name().as_bytes(), &cycle, name.as_bytes()].concat();
        Self { name, hash: hasher.hash(&identity), index, algorithm, capacity: algorithm.capacity() }
    }

    /// The limit's name. Limits of one name, algorithm and period share what their keys have used.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it decides.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The largest cost that it can ever allow.
    fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Tells it from the limits of other limiters.
    pub(crate) fn identity(&self) -> u64 {
        self.hash.as_u128() as u64
    }

    /// The hash of `key` under this limit.
    fn print(&self, key: KeyHash) -> u128 {
        key.under(self.hash).as_u128()
    }
}

/// What a request is to take from one limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The limit.
    pub terms: &'a Arc<Terms>,
    /// Whose bucket.
    pub key: KeyHash,
    /// Tokens. Zero takes nothing, is always allowed, and reports.
    pub cost: u64,
}

impl Charge<'_> {
    fn subject(&self) -> Subject {
        Subject { limit: self.terms.index, identity: self.terms.identity(), key: self.key, cost: self.cost }
    }
}

/// What an earlier request took from one limit, to be given back.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    /// The limit.
    pub terms: &'a Arc<Terms>,
    /// Whose bucket.
    pub key: KeyHash,
    /// Tokens.
    pub cost: u64,
    /// What the charge left behind.
    pub(crate) mark: Record,
}
