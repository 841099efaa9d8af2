//! Limits without HTTP, for jobs, sockets, queues and outgoing calls.
//!
//! A [`Builder`] configures a limiter. [`acquire`] decides at once, [`mod@wait`] waits until the limits allow an
//! operation, and [`call_limit`] does both around a Tower service. A [`handle`] gives access to single keys.

mod acquire;
mod acquire_error;
mod call_error;
mod call_limit;
mod handle;
mod wait;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::acquire_error::AcquireError;
pub use self::call_error::CallError;
pub use self::call_limit::{CallLimit, CallLimitLayer};
pub use self::handle::LimitHandle;
use crate::decision::Receipt;
use crate::engine::{CircuitBreaker, Engine, EngineConfig};
use crate::error::{ConfigError, or_panic};
use crate::key::Key;
use crate::limit::{Limit, Limits, Live, LiveLimits, OnStoreError};
use crate::recorder::{Event, Observer, Recorder};
use crate::store::{MemoryStore, Store, StoreFuture};

/// Limits anything that is not an HTTP request.
///
/// All limits of a limiter are decided together: an operation that one of them denies is charged to none. Clones share
/// their state.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = Limiter::new([
///     Limit::new("burst", TokenBucket::per_second(1).burst(5)),
///     Limit::new("daily", FixedWindow::per_day(20)),
/// ]);
///
/// let decision = mails.try_acquire("ann@example.org", 1).await?;
/// assert_eq!(decision.outcomes()[1].remaining(), 19);
///
/// // The mail was not sent after all.
/// mails.refund(decision.into_receipt()).await?;
/// assert_eq!(mails.peek("ann@example.org", 1).await?.outcomes()[1].remaining(), 20);
/// # Ok(())
/// # }
/// ```
///
/// These methods decide:
///
/// | method | when a limit denies |
/// |---|---|
/// | [`acquire`](Self::acquire), [`acquire_charges`](Self::acquire_charges) | return a [`Decision`](crate::Decision) that is not allowed |
/// | [`try_acquire`](Self::try_acquire) | returns an error |
/// | [`acquire_up_to`](Self::acquire_up_to) | takes a part, or returns a decision that is not allowed |
/// | [`wait`](Self::wait), [`wait_at_most`](Self::wait_at_most) | wait until the limits allow it |
/// | [`hold`](Self::hold), [`hold_at_most`](Self::hold_at_most) | as `try_acquire` and `wait_at_most`, also for slots of concurrency limits |
/// | [`peek`](Self::peek) | returns the decision; charges nothing in any case |
///
/// [`explain`](Self::explain) reports why an operation is allowed or denied.
#[derive(Clone)]
pub struct Limiter {
    engine: Arc<Engine>,
    /// The engine of the current limits, if they can be replaced.
    live: Option<Arc<Live<Engine>>>,
}

impl Limiter {
    /// Creates a limiter that keeps its state in memory. Use a [`builder`](Self::builder) for anything else.
    ///
    /// Without limits, it allows everything.
    ///
    /// # Panics
    ///
    /// Panics if [`Builder::try_build`] would return an error.
    #[must_use]
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::builder(limits).build()
    }

    /// Returns a builder of a limiter with these limits, which are decided together.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, MemoryStore};
    ///
    /// let mails = Limiter::builder([Limit::new("daily", FixedWindow::per_day(20))])
    ///     .store(MemoryStore::new())
    ///     .deadline(Duration::from_millis(20))
    ///     .build();
    /// # let _ = mails;
    /// ```
    pub fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder {
        Builder::new(limits)
    }

    /// Returns a builder of a limiter whose limits can be replaced at runtime.
    ///
    /// Once it is built, replacements with a limit that needs a request are errors: see [`LiveLimits::replace`].
    pub fn live_builder(limits: &LiveLimits) -> Builder {
        Builder::live(limits)
    }

    /// Returns the limits in the order in which they were given. With [`LiveLimits`], these are the limits that the
    /// limiter was built with. [`LiveLimits::limits`] returns the current ones.
    pub fn limits(&self) -> &[Limit] {
        &self.engine.limits
    }

    /// Refunds an earlier charge of this limiter or a clone of it, as far as it still counts.
    ///
    /// A window refunds the full cost as long as it counts the charge. A bucket refunds the tokens that have not come
    /// back yet. A queue refunds its slot if that is still the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the receipt has charges of another limiter. With [`LiveLimits`],
    /// charges of limits that were removed are ignored instead.
    pub fn refund(&self, receipt: Receipt) -> StoreFuture<()> {
        self.current().refund_own(receipt, self.live.is_some())
    }

    /// Resets `key` under every limit, as if it had never been used.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        let engine = self.current();
        engine.reset(engine.limits.charges_of(key.hash_with(engine.hasher()), 0))
    }

    /// Returns a handle of the limit called `name`, which inspects, resets and overrides single keys.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has that name.
    pub fn limit(&self, name: &str) -> Result<LimitHandle, ConfigError> {
        let limiter = self.clone();
        LimitHandle::new(move || limiter.current().into_owned(), name)
    }

    /// Returns the engine of the current limits.
    #[inline]
    fn current(&self) -> Cow<'_, Arc<Engine>> {
        Live::current_or(&self.live, &self.engine)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.engine).finish()
    }
}

/// Configures a [`RateLimitLayer`](crate::RateLimitLayer) or a [`Limiter`].
///
/// Created by [`RateLimitLayer::builder`](crate::RateLimitLayer::builder) or
/// [`Limiter::builder`](crate::Limiter::builder). A method that is called twice replaces the earlier value, unless its
/// documentation says that it adds to it. The order of calls does not matter.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{FixedWindow, Limit, MemoryStore, OnStoreError, RateLimitLayer, key};
///
/// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
///     .store(MemoryStore::new())
///     .deadline(Duration::from_millis(20))
///     .on_store_error(OnStoreError::Allow)
///     .build();
/// # let _ = limits;
/// ```
///
/// # Errors
///
/// Mistakes are reported when the limiter is built. `build` panics with a message that names the wrong value and is
/// meant for a configuration written in code. `try_build` returns the same message as a [`ConfigError`] and is meant
/// for a configuration read at runtime. These are mistakes:
///
/// - there are more than 8,192 limits, more than 64 may apply to one request, or two have the same name;
/// - a limit can never allow its constant cost, or a limit in [quota mode](Limit::quota_mode) has a penalty;
/// - the [overage](Limit::soft) or the [debt](Limit::debt) of a limit is 0 percent, or too much for a limit, or a queue
///   has a debt;
/// - a [concurrency limit](Limit::concurrent) has a cost, a debt, quota mode or settlements, or another limit has
///   [`longest_hold`](Limit::longest_hold) or [`until_head`](Limit::until_head);
/// - a [leased](Limit::leased) limit is a queue, a concurrency limit, in quota mode or overridable, or has a penalty; or its
///   term is not 1 ms to 1 minute in whole microseconds, or too long for its bucket;
/// - the [store](Self::store) can't keep a limit: a [sketch](crate::guide::performance#fixed-memory) counts windows
///   only;
/// - the [deadline](Self::deadline) is 0, or [`near_limit`](Self::near_limit) is not 1 to 100 percent;
/// - in a layer, a constant cost is over the capacity of an enforced limit that it applies to, or a path in a
///   [`CostTable`](crate::CostTable) does not start with a slash, or has a query. For a limit from a rules file, the
///   message has its position;
/// - in a limiter, a limit needs a request for its key, cost, condition or size, or depends on responses.
///
/// `T` contains the options that only layers have.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<T = ()> {
    limits: Vec<Limit>,
    /// The limits in place of those, if they can be replaced.
    live: Option<LiveLimits>,
    /// `None` stands for a new memory store.
    store: Option<Arc<dyn Store>>,
    config: EngineConfig,
    pub(crate) options: T,
}

impl<T: Default> Builder<T> {
    pub(crate) fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let limits = limits.into_iter().collect();
        Self { limits, live: None, store: None, config: EngineConfig::default(), options: T::default() }
    }

    pub(crate) fn live(limits: &LiveLimits) -> Self {
        Self { live: Some(limits.clone()), ..Self::new([]) }
    }
}

impl<T> Builder<T> {
    /// Sets the store that keeps the state of the limits. Defaults to a new [`MemoryStore`].
    ///
    /// Limiters that are given clones of one store share it: their limits of the same name, algorithm and period count
    /// together. A store that is chosen at runtime can be passed as an `Arc<dyn Store>`.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets how long the store may take for one request, at least 1 ns. Defaults to 50 ms.
    ///
    /// The deadline covers all calls to the store for one request, but not the time that a
    /// [`from_async_fn`](crate::key::from_async_fn) takes to find its key. Once it has passed,
    /// [`on_store_error`](Self::on_store_error) decides. The store may still complete the call: the request is then
    /// charged in vain, so limits become stricter, never laxer.
    ///
    /// A store that does not answer immediately needs a Tokio runtime with its timers enabled. Outside a runtime, its
    /// requests are decided by [`on_store_error`](Self::on_store_error).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// Sets when to stop calling a failing store, and for how long. Defaults to [`CircuitBreaker::new`].
    #[doc(alias = "circuit breaker")]
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.config.breaker = breaker;
        self
    }

    /// Sets the policy for requests that the store can't decide. Defaults to [`OnStoreError::Reject`].
    ///
    /// [`Limit::on_store_error`] overrides it for a single limit.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, OnStoreError, Share};
    ///
    /// let mails = Limiter::builder([Limit::new("mails", FixedWindow::per_day(20))])
    ///     .on_store_error(OnStoreError::DecideLocally(Share::one_of(4)))
    ///     .build();
    /// # let _ = mails;
    /// ```
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.config.on_store_error = policy;
        self
    }

    /// Adds a recorder, which sees each decision and each [`Event`].
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, Stats};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let stats = Stats::new();
    /// let mails = Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).recorder(stats.clone()).build();
    /// for _ in 0..3 {
    ///     let _ = mails.acquire("ann@example.org", 1).await.unwrap();
    /// }
    /// assert_eq!((stats.limits()[0].allowed, stats.limits()[0].denied), (1, 2));
    /// # });
    /// ```
    pub fn recorder(mut self, recorder: impl Recorder) -> Self {
        self.config.recorders.push(Arc::new(recorder));
        self
    }

    /// Adds a closure that is called with each [`Event`]. It is called inline, so keep it fast.
    pub fn observe(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.recorder(Observer(observer))
    }

    /// Sets the usage of a limit, in percent from 1 to 100, from which [recorders](Self::recorder) see a key as
    /// [near its limit](crate::LimitRecord::is_near_limit). Defaults to 80.
    pub fn near_limit(mut self, percent: u32) -> Self {
        self.config.near_percent = percent;
        self
    }

    /// Enforces no limit: all of them are in [shadow mode](Limit::shadow), and responses carry no headers about them.
    pub fn shadow(mut self) -> Self {
        self.config.is_shadow = true;
        self
    }

    /// Does not hold slots, because nothing tells when a request ends.
    pub(crate) fn without_held_slots(mut self) -> Self {
        self.config.holds_slots = false;
        self
    }

    /// Returns the limits as they are now.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        self.live.as_ref().map_or_else(|| self.limits.clone(), LiveLimits::limits)
    }

    /// Builds the engine. Returns the live limits, if there are any, and the remaining options, too.
    pub(crate) fn into_engine(self) -> Result<(Engine, Option<LiveLimits>, T), ConfigError> {
        let limits = Limits::new(self.limits())?;
        #[cfg(feature = "tracing")]
        if self.live.is_none() && (self.config.is_shadow || limits.iter().all(Limit::is_shadow)) {
            tracing::warn!("no limit is enforced: there is none, or all are in shadow mode");
        }
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let mut engine = Engine::new(limits, store, self.config)?;
        // For live limits, only engines that are derived from this one decide.
        if self.live.is_none() {
            engine.prepare()?;
        }
        Ok((engine, self.live, self.options))
    }
}

impl Builder {
    /// Builds the limiter.
    ///
    /// # Panics
    ///
    /// Panics if [`try_build`](Self::try_build) would return an error.
    #[must_use]
    #[track_caller]
    pub fn build(self) -> Limiter {
        or_panic(self.try_build())
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the [configuration is invalid](Self#errors).
    pub fn try_build(self) -> Result<Limiter, ConfigError> {
        self.limits().iter().try_for_each(Limit::check_needs_no_request)?;
        let (engine, limits, ()) = self.into_engine()?;
        let live = limits.map(|limits| {
            limits.derive(&engine, |engine, limits| {
                limits.iter().try_for_each(Limit::check_needs_no_request)?;
                engine.with_limits(limits)
            })
        });
        Ok(Limiter { engine: Arc::new(engine), live: live.transpose()? })
    }
}

impl<T> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("limits", &self.limits()).finish_non_exhaustive()
    }
}
