//! Storage backends: the [`Store`] trait, and the [`MemoryStore`].
//!
//! A store receives the charges of one request: the limits that apply, the keys, and the costs. It decides them
//! together, at one instant, and takes all of them or none.
//!
//! | subject | modules |
//! | --- | --- |
//! | The interface | this module, `override_store`, `usage`, `future` |
//! | Deciding by the states of keys, for all stores that run the algorithms in this process | `evaluation` |
//! | Answering requests that a database would deny again | `denials` |
//! | Stores | `memory`, `redis`, and `cas` for databases with compare-and-swap |
//!
//! A new store is a folder here, or a crate that implements [`Store`] or [`CompareAndSwap`].

mod cas;
mod denials;
mod evaluation;
mod future;
mod key_name;
mod memory;
mod override_store;
#[cfg(feature = "redis")]
mod redis;
mod usage;

use std::fmt;
use std::sync::Arc;

pub use self::cas::{CasStore, CompareAndSwap, Versioned};
pub(crate) use self::evaluation::resize::Resized;
pub(crate) use self::future::LONGEST_WAIT;
pub use self::future::StoreFuture;
pub use self::memory::MemoryStore;
pub(crate) use self::override_store::LONGEST_OVERRIDE;
pub use self::override_store::{Override, OverrideStore};
#[cfg(feature = "redis")]
pub use self::redis::{RedisConfig, RedisStore};
pub use self::usage::StoreUsage;
pub use crate::algorithm::state::ChargeMark;
pub(crate) use crate::charge::OwnedCharge;
pub use crate::charge::{Charge, Refund};
use crate::decision::Decision;
pub use crate::hash::{KeyHash, KeyHasher};
pub use crate::limit_spec::LimitSpec;
pub use crate::node::Node;

/// Keeps the state of keys, and decides requests by it.
///
/// The first five methods are required. The others are optional capabilities; their defaults report that the store lacks
/// them. A store that wraps another forwards all methods.
///
/// # Implementing a store
///
/// For a database with compare-and-swap, implement [`CompareAndSwap`] instead, and use a [`CasStore`].
///
/// A store decides as [`MemoryStore`] does: by the [`LimitSpec::algorithm`] of each charge, as the
/// [decision semantics](crate::guide::semantics) define. This one allows everything:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
/// use tower_ratelimit::{Clock, Decision, FixedWindow, Limit, Limiter, Outcome, Store, SystemClock, Verdict};
///
/// #[derive(Debug)]
/// struct Unlimited {
///     clock: SystemClock,
///     hasher: KeyHasher,
/// }
///
/// impl Unlimited {
///     fn outcomes(charges: &[Charge<'_>]) -> impl Iterator<Item = Outcome> {
///         charges.iter().map(|charge| {
///             let remaining = charge.spec.algorithm().capacity();
///             Outcome::new(charge, Verdict::NOW, remaining, None, Duration::ZERO)
///         })
///     }
/// }
///
/// impl Store for Unlimited {
///     fn hasher(&self) -> KeyHasher {
///         self.hasher
///     }
///
///     fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
///         StoreFuture::ready(Ok(Decision::new(self.clock.now(), Self::outcomes(charges))))
///     }
///
///     fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
///         StoreFuture::ready(Ok(Decision::peeked(self.clock.now(), Self::outcomes(charges))))
///     }
///
///     fn refund(&self, _: &[Refund<'_>]) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
///
///     fn reset(&self, _: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = Unlimited { clock: SystemClock::new(), hasher: KeyHasher::fast() };
/// let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).store(store).build();
/// assert!(limiter.acquire("ann@example.org", 1_000).await.unwrap().is_allowed());
/// # });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    label = "expected a `Store`",
    note = "use `MemoryStore`, or `RedisStore` with the feature `redis`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the hasher of this store's keys. Stores that share a database need one with the same secret.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request, and takes its charges from all limits or from none, even if the future is dropped before it is
    /// ready. No two charges name the same limit.
    ///
    /// A limit that is not [enforced](LimitSpec::is_enforced) denies nothing, and is charged if it has capacity. Of the
    /// limits in [quota mode](LimitSpec::is_quota), at least one must have capacity:
    /// [`Outcome::is_enforced`](crate::Outcome::is_enforced) describes which of them count.
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Decides a request as [`decide`](Self::decide) would now, without charging anything.
    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Refunds earlier charges, as far as they still count.
    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()>;

    /// Removes the state of keys, as if they had never been used.
    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()>;

    /// Returns the decision that [`decide`](Self::decide) would return now, and takes nothing. Unlike those of
    /// [`peek`](Self::peek), its outcomes report what would be left after the request: `remaining`, `reset_after`, and a
    /// lockout that the request would begin. Nothing is charged, and no strike is counted.
    ///
    /// [Explanations](crate::explain) use it. Defaults to [`peek`](Self::peek), so that they report what is left before
    /// the request.
    fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.peek(charges)
    }

    /// Returns the decision on a request that the store can make without calling its database, such as a denial whose
    /// wait is not over. It applies even while a [circuit breaker](crate::CircuitBreaker) is open. Defaults to `None`.
    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let _ = charges;
        None
    }

    /// Returns the node that keeps `key`, if the store spreads its keys over several: each node has a
    /// [circuit breaker](crate::CircuitBreaker) of its own. Defaults to `None`, for a store that is a single node.
    ///
    /// Called only while a node fails. Must not block.
    fn node(&self, key: KeyHash) -> Option<Node> {
        let _ = key;
        None
    }

    /// Returns the name of the store in logs, such as `10.0.0.5:6379`. It must not contain credentials. Defaults to
    /// `None`.
    fn name(&self) -> Option<String> {
        None
    }

    /// Returns the resources that the store uses, for [recorders](crate::Recorder). Called at most about once a second.
    /// Defaults to an empty [`StoreUsage`].
    fn usage(&self) -> StoreUsage {
        StoreUsage::default()
    }

    /// Returns the store's [overrides](crate::Overrides) of limits for single keys, if it supports them. Defaults to
    /// `None`: setting an override is then an error of kind
    /// [`NotSupported`](crate::StoreErrorKind::NotSupported).
    fn overrides(&self) -> Option<&dyn OverrideStore> {
        None
    }
}

macro_rules! forward_store {
    ($($pointer:ident),*) => {
        $(impl<S: Store + ?Sized> Store for $pointer<S> {
            fn hasher(&self) -> KeyHasher {
                (**self).hasher()
            }

            fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
                (**self).decide(charges)
            }

            fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
                (**self).peek(charges)
            }

            fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
                (**self).preview(charges)
            }

            fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
                (**self).refund(refunds)
            }

            fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
                (**self).reset(keys)
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

            fn usage(&self) -> StoreUsage {
                (**self).usage()
            }

            fn overrides(&self) -> Option<&dyn OverrideStore> {
                (**self).overrides()
            }
        })*
    };
}
forward_store!(Arc, Box);
