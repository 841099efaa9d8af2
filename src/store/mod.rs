//! Storage backends: the [`Store`] trait, three stores, and one that wraps others.
//!
//! A store receives the [charges](Charges) of one request: the limits that apply, the keys, and the costs. It decides them
//! together, at one instant, and takes all of them or none.
//!
//! | subject | modules |
//! | --- | --- |
//! | The interface | this module, `future` |
//! | Answering requests that a database would deny again | `remembering`, `denials` |
//! | Stores | `memory`, `redis`, and `cas` for databases with compare-and-swap |
//!
//! A new store is a folder here, or a crate that implements [`Store`] or [`CompareAndSwap`].

mod cas;
mod denials;
mod future;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod remembering;

use std::any::Any;
use std::fmt::{self, Write};
use std::sync::{Arc, Once};
use std::time::Duration;

pub(crate) use self::cas::KeyMap;
pub use self::cas::{CasStore, CompareAndSwap, Versioned};
pub use self::future::{Answer, StoreFuture};
pub use self::memory::MemoryStore;
#[doc(alias = "bloom filter")]
#[doc(alias = "count-min sketch")]
pub use self::memory::Sketch;
#[cfg(feature = "redis")]
pub use self::redis::{RedisConfig, RedisStore};
pub use self::remembering::Remembering;
use crate::algorithm::{Algorithm, CompactState, NEVER, Penalty, Size};
pub use crate::decision::{Charge, Charges, Outcome, Purpose, Veto};
pub use crate::error::Node;
use crate::error::{ConfigError, StoreError};
pub use crate::key::hash::{KeyHash, KeyHasher};
use crate::time::{Timestamp, ceil_micros};

/// Keeps the state of keys, and decides requests by it.
///
/// The first four methods are required. The others are optional capabilities. Their defaults report that the store lacks
/// them, or ask the store [inside](Self::inner).
///
/// # Implementing a store
///
/// For a database with compare-and-swap, implement [`CompareAndSwap`] instead, and use a [`CasStore`].
///
/// A store decides as [`MemoryStore`] does: by the [`Charge::algorithm`] of each charge, as the
/// [decision semantics](crate::guide::semantics) define. This one allows everything:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, StoreFuture};
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
///     fn decide(&self, charges: &mut Charges, _: Purpose, _: Duration) -> StoreFuture<Answer> {
///         for outcome in charges.iter_mut() {
///             outcome.answer(Verdict::NOW, outcome.algorithm().capacity(), None, Duration::ZERO);
///         }
///         StoreFuture::ready(Ok(Answer::new(self.clock.now())))
///     }
///
///     fn refund(&self, _: &Charges) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
///
///     fn reset(&self, _: &Charges) -> StoreFuture<()> {
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
/// # Wrapping a store
///
/// A future cannot borrow the charges: clone them, and return the answered clones with [`Answer::with_charges`]. A
/// charge without an answer is an error. This store lets a few requests at a time into the one that it wraps:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tokio::sync::Semaphore;
/// use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, StoreFuture};
/// use tower_ratelimit::{Store, StoreError};
///
/// #[derive(Debug)]
/// struct AtMost<S> {
///     inner: Arc<S>,
///     permits: Arc<Semaphore>,
/// }
///
/// impl<S: Store> Store for AtMost<S> {
///     fn hasher(&self) -> KeyHasher {
///         self.inner.hasher()
///     }
///
///     fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
///         let (inner, permits, mut charges) = (self.inner.clone(), self.permits.clone(), charges.clone());
///         StoreFuture::pending(async move {
///             let _permit = permits.acquire().await.map_err(StoreError::new)?;
///             let at = inner.decide(&mut charges, purpose, longest_wait).await?.finish(&mut charges);
///             Ok(Answer::with_charges(at, charges))
///         })
///     }
///
///     fn refund(&self, charges: &Charges) -> StoreFuture<()> {
///         self.inner.refund(charges)
///     }
///
///     fn reset(&self, charges: &Charges) -> StoreFuture<()> {
///         self.inner.reset(charges)
///     }
/// }
/// # #[cfg(feature = "conformance")]
/// # tokio::runtime::Runtime::new().unwrap().block_on(tower_ratelimit::conformance::check_all(async |clock| AtMost {
/// #     inner: Arc::new(tower_ratelimit::MemoryStore::new().clock(clock)),
/// #     permits: Arc::new(Semaphore::new(2)),
/// # }));
/// ```
///
/// It works without the optional methods; [the guide](crate::guide::stores#wrapping-a-store) lists what each adds.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    label = "expected a `Store`",
    note = "use `MemoryStore`, or `RedisStore` with the feature `redis`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the hasher of this store's keys. Stores that share a database need one with the same secret.
    fn hasher(&self) -> KeyHasher;

    /// Decides a request. For [`Purpose::Take`], takes the costs of an allowed request from all limits or from none,
    /// even if the future is dropped before it is ready. No two charges have the same [fingerprint](Charge::fingerprint).
    ///
    /// A limit in [shadow mode](Veto::Shadow) denies nothing, and is charged if it has capacity. Of the limits in
    /// [quota mode](Veto::Quota), at least one must have capacity: [`Outcome::is_enforced`] describes which of them
    /// count. If a charge is left without an answer, the decision is an error. The stores of this crate lock keys out
    /// that have a [`Penalty`]. Others report lockouts of their own by [`Outcome::set_locked_out`] or
    /// [`Outcome::set_new_lockout`].
    ///
    /// `longest_wait` is how long the request may wait for other requests: half of the time until its deadline, so that
    /// the other half is left for the database.
    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer>;

    /// Refunds charges that were made, by their [marks](Outcome::mark), as far as they still count.
    fn refund(&self, charges: &Charges) -> StoreFuture<()>;

    /// Removes the states of charges, as if their keys had never been used.
    fn reset(&self, charges: &Charges) -> StoreFuture<()>;

    /// Renews slots of [concurrency limits](crate::Concurrency) that requests in flight hold: refunds each charge by its
    /// [mark](Outcome::mark), as far as it still counts, and charges the same cost at the present instant, whatever the
    /// limit is, as one operation. Answers the new marks. A mark of zeros refunds nothing, and is the answer for a charge
    /// whose renewal has failed, if others have not. Two charges may have the same fingerprint.
    ///
    /// Returns `None` if the states of keys end with this process, so that slots need not expire. Called without charges
    /// to find that out. Defaults to an error of kind [`NotSupported`](crate::StoreErrorKind::NotSupported): a limiter
    /// with a concurrency limit can't be built then.
    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        match self.inner() {
            Some(inner) => inner.renew(charges),
            None => Some(StoreFuture::ready(Err(StoreError::not_supported()))),
        }
    }

    /// Returns the store that this one wraps, if it wraps one. All optional methods but
    /// [`decide_at_once`](Self::decide_at_once), which decides requests, then ask that store by default.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Prepares the store for a limit: allocates what it needs, or reports that the store can't keep it.
    ///
    /// Called for each limit when a limiter is built, and when its limits are replaced. `limit` is a charge of no key,
    /// and `depends_on_refunds` is whether responses refund requests. The limiter keeps the returned value as long as
    /// it has the limit. Defaults to `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't keep the limit. The name of the limit is put before its message.
    fn prepare(
        &self,
        limit: &Charge,
        penalty: Option<&Penalty>,
        depends_on_refunds: bool,
    ) -> Result<Option<Preparation>, ConfigError> {
        self.inner().map_or(Ok(None), |inner| inner.prepare(limit, penalty, depends_on_refunds))
    }

    /// Decides a request without calling a database, and returns the instant of the decision. A store in memory always
    /// does so. Other stores repeat a denial whose wait is not over, and return `None` for all other requests.
    ///
    /// Called for each request, even while a [circuit breaker](crate::CircuitBreaker) is open. If it returns `None`,
    /// [`decide`](Self::decide) is called. Defaults to `None`.
    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        let _ = (charges, purpose);
        None
    }

    /// Returns the current instant of the clock by which the store decides, if it can be read without waiting. Defaults
    /// to `None`. [`Remembering`] then estimates it, which requires a clock that runs at the rate of real time.
    fn now(&self) -> Option<Timestamp> {
        self.inner()?.now()
    }

    /// Returns whether charges need their [readable names](Charges::readable_name). Defaults to `true` with the
    /// [hasher](Self::hasher) of a `RedisStore`, and to `false` with others.
    fn has_readable_keys(&self) -> bool {
        self.inner().map_or_else(|| self.hasher().has_readable_keys, Store::has_readable_keys)
    }

    /// Returns the node that keeps `key`, if the store spreads its keys over several: each node has a
    /// [circuit breaker](crate::CircuitBreaker) of its own. Defaults to `None`, for a store that is a single node.
    ///
    /// Called only while a node fails. Must not block.
    fn node(&self, key: KeyHash) -> Option<Node> {
        self.inner()?.node(key)
    }

    /// Returns a number that tells stores apart. All handles of one store return the same. Limiters refund only receipts
    /// of their own store, and those of one store log an outage together. Defaults to 0, which stands for an unknown
    /// store.
    fn identity(&self) -> u32 {
        self.inner().map_or(0, Store::identity)
    }

    /// Returns the name of the store in logs, such as `10.0.0.5:6379`. It must not contain credentials. Defaults to
    /// `None`.
    fn name(&self) -> Option<String> {
        self.inner()?.name()
    }

    /// Returns the resources that the store uses, for [recorders](crate::Recorder). Not called for each decision.
    /// Defaults to an empty [`StoreUsage`].
    fn usage(&self) -> StoreUsage {
        self.inner().map(Store::usage).unwrap_or_default()
    }

    /// Gets, sets or removes the [override](crate::LimitHandle#overrides) of a limit for the key of the first charge. Returns the
    /// override that it gets, if there is one that has not expired, and `None` otherwise. Defaults to an error of kind
    /// [`NotSupported`](crate::StoreErrorKind::NotSupported).
    ///
    /// A store with overrides applies them in each decision of an [overridable](Charge::is_overridable) limit: it reads
    /// the override with the state of the key, and passes it to [`Outcome::apply_override`].
    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        match self.inner() {
            Some(inner) => inner.access_override(charges, operation),
            None => StoreFuture::ready(Err(StoreError::not_supported())),
        }
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn hasher(&self) -> KeyHasher {
        (**self).hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        (**self).decide(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        (**self).refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        (**self).reset(charges)
    }

    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        (**self).renew(charges)
    }

    fn inner(&self) -> Option<&dyn Store> {
        (**self).inner()
    }

    fn prepare(
        &self,
        limit: &Charge,
        penalty: Option<&Penalty>,
        depends_on_refunds: bool,
    ) -> Result<Option<Preparation>, ConfigError> {
        (**self).prepare(limit, penalty, depends_on_refunds)
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        (**self).decide_at_once(charges, purpose)
    }

    fn now(&self) -> Option<Timestamp> {
        (**self).now()
    }

    fn has_readable_keys(&self) -> bool {
        (**self).has_readable_keys()
    }

    fn identity(&self) -> u32 {
        (**self).identity()
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

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        (**self).access_override(charges, operation)
    }
}

/// A value of a store that is dropped when no limiter has a limit any more: see [`Store::prepare`].
pub type Preparation = Arc<dyn Any + Send + Sync>;

/// The resources that a store uses. Fields that the store does not know are `None`.
///
/// ```
/// use tower_ratelimit::store::StoreUsage;
///
/// let usage = StoreUsage { keys: Some(12), bytes: Some(4_096), ..StoreUsage::default() };
/// assert_eq!(usage.queued, None);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreUsage {
    /// The number of keys whose state is kept in this process.
    pub keys: Option<u64>,
    /// The memory that these keys take, and [sketches](Sketch) of others, in bytes.
    pub bytes: Option<u64>,
    /// The number of requests that wait to be sent to the database.
    pub queued: Option<u64>,
}

/// An operation on the override of a key: see [`Store::access_override`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OverrideOperation {
    /// Returns the override.
    Get,
    /// Sets the override, in place of any previous one. Its algorithm has the limit's kind and period, and it expires
    /// within 36,525 days, which [`LimitHandle::set_override`](crate::LimitHandle::set_override) checks.
    Set(Override),
    /// Removes the override, if there is one.
    Remove,
}

/// An override of a limit's size for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Override {
    /// The algorithm of the limit, with the number of tokens for this key.
    pub algorithm: Algorithm,
    /// The time until the override expires, or `None` if it never does.
    pub expires_after: Option<Duration>,
}

/// The longest time after which an override expires: 100 years.
pub(crate) const LONGEST_OVERRIDE: Duration = Duration::from_secs(36_525 * 86_400);

/// An override, as stores keep it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct StoredOverride {
    size: Size,
    /// The instant at which it expires, in µs, or [`NEVER`].
    expires_at: u64,
}

impl StoredOverride {
    /// Creates an override that is set at `now` (in µs).
    fn new(by: Override, now: u64) -> Self {
        let expires_at = by.expires_after.map_or(NEVER, |after| now.saturating_add(ceil_micros(after)));
        Self { size: by.algorithm.size(), expires_at }
    }

    /// Returns the state that holds it. One that never expires has the expiry 0.
    fn to_state(self) -> CompactState {
        let [tokens, amount] = self.size.map(u64::from);
        let expires_at = if self.expires_at == NEVER { 0 } else { self.expires_at };
        CompactState { expires_at, at: 0, detail: amount << 32 | tokens }
    }

    fn of_state(state: CompactState) -> Self {
        let expires_at = if state.expires_at == 0 { NEVER } else { state.expires_at };
        Self { size: [state.detail as u32, (state.detail >> 32) as u32], expires_at }
    }

    fn is_valid_at(&self, now: u64) -> bool {
        now < self.expires_at
    }

    /// Returns the override of a charge, unless its limit cannot have that size.
    fn of(&self, charge: &Charge, now: u64) -> Option<Override> {
        let expires_after = Duration::from_micros(self.expires_at.saturating_sub(now));
        let expires_after = (self.expires_at < NEVER).then_some(expires_after);
        Some(Override { algorithm: charge.algorithm().with_size(self.size)?, expires_after })
    }
}

/// Creates the identity of a store that only this process knows.
fn random_identity() -> u32 {
    KeyHasher::random().hash(&[]).as_u128() as u32
}

/// The default prefix of all names.
const DEFAULT_PREFIX: &str = "ratelimit";

/// The hasher of a store that processes share. Its clones log together that the secret is public, if it is.
#[derive(Clone, Debug)]
struct SharedHasher(KeyHasher, Option<Arc<Once>>);

impl SharedHasher {
    /// Creates the hasher of a store without a secret. It gives keys a fixed size, but no protection.
    fn public() -> Self {
        Self(KeyHasher::with_secret(*b"tower-ratelimit\0"), Some(Arc::new(Once::new())))
    }

    /// Returns the hasher for a limiter.
    fn get(&self) -> KeyHasher {
        if let Some(_once) = &self.1 {
            #[cfg(feature = "tracing")]
            _once.call_once(|| {
                tracing::warn!(concat!(
                    "the keys of a store are hashed with a public secret, so clients can construct keys that collide: ",
                    "set 16 random bytes, the same in all processes, by `RedisStore::secret` or `CasStore::secret`"
                ));
            });
        }
        self.0
    }
}

/// Percent-encodes all characters but ASCII letters, digits and `-._/`. The others could separate the parts of a name,
/// be part of a pattern, break a line, or be invalid in the keys of a database.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}
