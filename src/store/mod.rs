//! Who remembers: the [`Store`] trait, and the [`MemoryStore`].
//!
//! A store is handed the charges of one request: which limits apply, under which keys, at what
//! cost. It decides them together, at one instant: all are taken or none.

mod charge;
mod future;
mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use charge::Charge;
pub(crate) use charge::OwnedCharge;
pub use future::StoreFuture;
pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisStore};

use crate::algorithm::{Algorithm, ChargeMark};
use crate::decision::Decision;
use crate::error::StoreError;
pub use crate::hash::{KeyHash, KeyHasher};
pub use crate::limit_spec::LimitSpec;
pub use crate::node::Node;

/// Remembers what keys have used, and decides by it.
///
/// For now, a store of your own can wrap another (to count, to log, to fail on purpose); what it
/// takes to write one from scratch is not public yet.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    label = "expected a `Store`",
    note = "use `MemoryStore`, or `RedisStore` with the feature `redis`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How keys are to be hashed for this store.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request, and takes its charges from all its limits or from none. No two of the
    /// charges name one limit. A limit that is not [enforced](LimitSpec::is_enforced) is charged if it has
    /// room, and denies nothing.
    fn acquire(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Decides a request as [`acquire`](Self::acquire) would now, and takes nothing.
    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// What [`acquire`](Self::acquire) and [`peek`](Self::peek) would decide without asking anyone: a
    /// denial that is remembered. It is told even while a [circuit breaker](crate::CircuitBreaker) is
    /// open. None, unless a store says otherwise: one that wraps another asks that.
    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let _ = charges;
        None
    }

    /// The node that keeps `key`, where a store spreads its keys over several: each has a
    /// [circuit breaker](crate::CircuitBreaker) of its own. `None`, the default, makes the store a single node. A
    /// store that wraps another must forward this method: otherwise all nodes share one breaker.
    ///
    /// Called only while a node fails. It answers by what it knows, without waiting.
    fn node(&self, key: KeyHash) -> Option<Node> {
        let _ = key;
        None
    }

    /// Names the store in logs, such as `10.0.0.5:6379`. The name must not contain credentials. Defaults to `None`. A
    /// store that wraps another should forward this method.
    fn name(&self) -> Option<String> {
        None
    }

    /// Gives back what still counts of earlier charges.
    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()>;

    /// Forgets keys: it is as if they had never been seen.
    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()>;

    /// Gives a key another size of a limit, until it is removed or has expired: `algorithm`, of the limit's kind
    /// and period. [`Overrides`](crate::Overrides) checks that; a store decides by it wherever spec are
    /// [overridable](LimitSpec::is_overridable).
    ///
    /// A store keeps none unless it says otherwise, which is an error of
    /// [its own kind](crate::StoreErrorKind::NotSupported): one that wraps another passes this on, and the three
    /// methods that follow.
    fn set_override(
        &self,
        spec: &Arc<LimitSpec>,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> StoreFuture<()> {
        let _ = (spec, key, algorithm, expires_after);
        StoreFuture::ready(Err(StoreError::not_supported()))
    }

    /// What [`set_override`](Self::set_override) has set, if it holds.
    fn get_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let _ = (spec, key);
        StoreFuture::ready(Err(StoreError::not_supported()))
    }

    /// Gives a key the limit's own size again.
    fn remove_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        let _ = (spec, key);
        StoreFuture::ready(Err(StoreError::not_supported()))
    }

    /// What is known here of a key's override without asking, for when the store can't be asked. None, unless a
    /// store says otherwise.
    fn last_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> Option<Algorithm> {
        let _ = (spec, key);
        None
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn hasher(&self) -> KeyHasher {
        (**self).hasher()
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        (**self).acquire(charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        (**self).peek(charges)
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        (**self).remembered(charges)
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        (**self).node(key)
    }

    fn name(&self) -> Option<String> {
        (**self).name()
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        (**self).refund(refunds)
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        (**self).reset(keys)
    }

    fn set_override(
        &self,
        spec: &Arc<LimitSpec>,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> StoreFuture<()> {
        (**self).set_override(spec, key, algorithm, expires_after)
    }

    fn get_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        (**self).get_override(spec, key)
    }

    fn remove_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        (**self).remove_override(spec, key)
    }

    fn last_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> Option<Algorithm> {
        (**self).last_override(spec, key)
    }
}

/// What a store holds of a limit's size for one key: see [`Overrides`](crate::Overrides).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Override {
    /// The limit, as it is for that key.
    pub algorithm: Algorithm,
    /// How long it holds from here on. `None` is until it is removed.
    pub expires_after: Option<Duration>,
}

/// The longest time after which an override expires: 100 years.
pub(crate) const LONGEST_OVERRIDE: Duration = Duration::from_secs(36_525 * 86_400);

/// A span in µs, of which a started one counts whole.
fn span(expires_after: Duration) -> u64 {
    expires_after.min(LONGEST_OVERRIDE).as_nanos().div_ceil(1_000) as u64
}

/// What an earlier request took from one limit, to be given back.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    /// The limit.
    pub spec: &'a Arc<LimitSpec>,
    /// Whose bucket.
    pub key: KeyHash,
    /// Tokens.
    pub cost: u64,
    /// What the charge left behind.
    pub(crate) mark: ChargeMark,
}
