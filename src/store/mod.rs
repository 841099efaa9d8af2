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

use crate::decision::{Decision, Subject};
pub use crate::hash::{KeyHash, KeyHasher};
use crate::record::Record;
pub use crate::terms::Terms;

/// Remembers what keys have used, and decides by it.
///
/// For now, a store of your own can wrap another (to count, to log, to fail on purpose); what it
/// takes to write one from scratch is not public yet.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How keys are to be hashed for this store.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request, and takes its charges from all its limits or from none. No two of the
    /// charges name one limit. A limit that is not [enforced](Terms::is_enforced) is charged if it has
    /// room, and denies nothing.
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
        let Charge { terms, key, cost } = *self;
        Subject { limit: terms.index(), identity: terms.identity(), key, cost, is_enforced: terms.is_enforced() }
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
