//! Storage backends: the [`Store`] trait, and the [`MemoryStore`].
//!
//! A store receives the [cells](Cell) of one request: the limits that apply, the keys, and the costs. It decides them
//! together, at one instant, and takes all of them or none.
//!
//! | subject | modules |
//! | --- | --- |
//! | The interface | this module, `override_store`, `usage`, `future` |
//! | Deciding by the states of keys, for all stores that run the algorithms in this process | `decide` |
//! | Answering requests that a database would deny again | `denials` |
//! | Stores | `memory`, `redis`, and `cas` for databases with compare-and-swap |
//!
//! A new store is a folder here, or a crate that implements [`Store`] or [`CompareAndSwap`].

mod cas;
pub(crate) mod decide;
mod denials;
mod future;
pub(crate) mod key_name;
mod memory;
mod override_store;
#[cfg(feature = "redis")]
mod redis;
mod usage;

use std::fmt;
use std::sync::Arc;

pub use self::cas::{CasStore, CompareAndSwap, Versioned};
pub use self::decide::Purpose;
pub(crate) use self::future::LONGEST_WAIT;
pub use self::future::{Answer, StoreFuture};
pub use self::memory::MemoryStore;
pub(crate) use self::override_store::LONGEST_OVERRIDE;
pub use self::override_store::{Override, OverrideStore};
#[cfg(feature = "redis")]
pub use self::redis::{RedisConfig, RedisStore};
pub use self::usage::StoreUsage;
pub use crate::algorithm::state::ChargeMark;
pub use crate::decision::{Cell, Veto};
pub use crate::hash::{KeyHash, KeyHasher};
pub use crate::node::Node;
use crate::time::Timestamp;

/// Keeps the state of keys, and decides requests by it.
///
/// The first four methods are required. The others are optional capabilities; their defaults report that the store lacks
/// them. A store that wraps another forwards all methods.
///
/// # Implementing a store
///
/// For a database with compare-and-swap, implement [`CompareAndSwap`] instead, and use a [`CasStore`].
///
/// A store decides as [`MemoryStore`] does: by the [`Cell::algorithm`] of each cell, as the
/// [decision semantics](crate::guide::semantics) define. This one allows everything:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::store::{Answer, Cell, KeyHasher, Purpose, StoreFuture};
/// use tower_ratelimit::{Clock, FixedWindow, Limit, Limiter, Store, SystemClock, Verdict};
///
/// #[derive(Debug)]
/// struct Unlimited {
///     clock: SystemClock,
///     hasher: KeyHasher,
/// }
///
/// impl Store for Unlimited {
///     fn hasher(&self) -> KeyHasher {
///         self.hasher
///     }
///
///     fn decide(&self, cells: &mut [Cell], _: Purpose) -> StoreFuture<Answer> {
///         for cell in cells {
///             cell.answer(Verdict::NOW, cell.algorithm().capacity(), None, Duration::ZERO);
///         }
///         StoreFuture::ready(Ok(Answer::new(self.clock.now())))
///     }
///
///     fn refund(&self, _: &[Cell]) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
///
///     fn reset(&self, _: &[Cell]) -> StoreFuture<()> {
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
///
/// A future cannot borrow the cells: clone them, and return them with [`Answer::with_cells`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    label = "expected a `Store`",
    note = "use `MemoryStore`, or `RedisStore` with the feature `redis`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the hasher of this store's keys. Stores that share a database need one with the same secret.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request. For [`Purpose::Take`], takes the costs of an allowed request from all limits or from none, even
    /// if the future is dropped before it is ready. No two cells have the same [fingerprint](Cell::fingerprint).
    ///
    /// A limit in [shadow mode](Veto::Shadow) denies nothing, and is charged if it has capacity. Of the limits in [quota
    /// mode](Veto::Quota), at least one must have capacity: [`Cell::is_enforced`] describes which of them count. The cell of
    /// a [penalty](Cell::is_of_penalty) denies while the key is locked out; a store without penalties leaves it as it is.
    fn decide(&self, cells: &mut [Cell], purpose: Purpose) -> StoreFuture<Answer>;

    /// Refunds the costs of cells that were charged, by their [marks](Cell::mark), as far as they still count.
    fn refund(&self, cells: &[Cell]) -> StoreFuture<()>;

    /// Removes the states of cells, as if their keys had never been used.
    fn reset(&self, cells: &[Cell]) -> StoreFuture<()>;

    /// Answers a request that the store can decide without calling its database, such as a denial whose wait is not over,
    /// and returns the instant of the decision. It applies even while a [circuit breaker](crate::CircuitBreaker) is open.
    /// Defaults to `None`.
    fn remembered(&self, cells: &mut [Cell]) -> Option<Timestamp> {
        let _ = cells;
        None
    }

    /// Returns whether cells need their [readable names](Cell::readable_name). Defaults to `false`.
    fn has_readable_keys(&self) -> bool {
        false
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

    /// Returns the store's [overrides](crate::LimitHandle#overrides) of limits for single keys, if it supports them. Defaults to
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

            fn decide(&self, cells: &mut [Cell], purpose: Purpose) -> StoreFuture<Answer> {
                (**self).decide(cells, purpose)
            }

            fn refund(&self, cells: &[Cell]) -> StoreFuture<()> {
                (**self).refund(cells)
            }

            fn reset(&self, cells: &[Cell]) -> StoreFuture<()> {
                (**self).reset(cells)
            }

            fn remembered(&self, cells: &mut [Cell]) -> Option<Timestamp> {
                (**self).remembered(cells)
            }

            fn has_readable_keys(&self) -> bool {
                (**self).has_readable_keys()
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
