//! The configuration of a limiter, before it is built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::limit::{Limit, Limits, LiveLimits, OnStoreError};
use crate::recorder::{Event, Observer, Recorder};
use crate::resilience::{CircuitBreaker, GuardedStore, GuardedStoreConfig};
use crate::store::{MemoryStore, Store};

/// Configures a [`RateLimitLayer`](crate::RateLimitLayer) or a [`Limiter`](crate::Limiter).
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
/// - the [overage](Limit::soft) of a limit is 0 percent, or too much for a limit;
/// - the [deadline](Self::deadline) is 0, or [`near_limit`](Self::near_limit) is not 1 to 100 percent;
/// - in a layer, a constant cost is over the capacity of an enforced limit that it applies to, or a path in a
///   [`CostTable`](crate::CostTable) does not start with a slash. For a limit from a rules file, the message has its
///   position;
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
    config: GuardedStoreConfig,
    pub(crate) options: T,
}

impl<T: Default> Builder<T> {
    pub(crate) fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let limits = limits.into_iter().collect();
        Self { limits, live: None, store: None, config: GuardedStoreConfig::default(), options: T::default() }
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
    /// A store that does not answer immediately needs a Tokio runtime with its timers enabled.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// Sets when to stop calling a failing store, and for how long. Defaults to [`CircuitBreaker::new`].
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

    /// Returns the limits as they are now.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        self.live.as_ref().map_or_else(|| self.limits.clone(), LiveLimits::limits)
    }

    /// Builds the client of the store. Returns the live limits, if there are any, and the remaining options, too.
    pub(crate) fn into_client(self) -> Result<(GuardedStore, Option<LiveLimits>, T), ConfigError> {
        let limits = Limits::new(self.limits())?;
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        Ok((GuardedStore::new(limits, store, self.config)?, self.live, self.options))
    }
}

impl<T> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("limits", &self.limits()).finish_non_exhaustive()
    }
}
