//! Limits that can be replaced at runtime.
//!
//! Layers and limiters derive their configurations from the limits. A replacement derives all configurations anew, and
//! then puts them in force. A request keeps the configuration with which it began.

use std::borrow::Cow;
#[cfg(feature = "rules")]
use std::error::Error;
use std::fmt;
#[cfg(feature = "rules")]
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
#[cfg(feature = "rules")]
use tokio::task::JoinSet;

use super::definition::Limit;
use super::limits::Limits;
use crate::error::{ConfigError, or_panic};
use crate::recorder::{Event, Observer, Recorder, Recorders, report};

/// Limits that can be replaced at runtime: by [`replace`](Self::replace), by a watched file (`rules::watch`), or by the
/// rules of a fleet in Redis (`RedisStore::follow_rules`). Clones share the limits.
///
/// ```
/// use axum::Router;
/// use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer, key};
///
/// let hourly = |requests| [Limit::new("hourly", FixedWindow::per_hour(requests)).by(key::peer_ip())];
/// let limits = LiveLimits::new(hourly(100));
/// let app: Router = Router::new().layer(RateLimitLayer::live_builder(&limits).build());
///
/// // Later, for example in an admin's request: keys that have used 80 of 100 have 120 left.
/// limits.replace(hourly(200))?;
/// # let _ = app;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// # Replacement
///
/// - A request uses the limits that were in force when it arrived, until it ends: their keys, costs and headers, on a
///   route with a cost of its own, and in later calls of its [`Permit`](crate::Permit). Requests that arrive after
///   [`replace`](Self::replace) has returned use the new limits. No request is rejected or delayed by a replacement:
///   `replace` prepares the new limits for every layer in use, and for each of its
///   [costs](crate::RateLimitLayer::cost), before they take effect.
/// - **Usage carries over** to limits with the same name, algorithm and period (and refill mode of a token bucket, or
///   number of buckets of a sliding window), whatever else has changed. A removed limit no longer applies; its
///   state expires as usual, and counts again if the limit is added back before that.
/// - The layer's own settings and state stay: store, circuit breaker, local decisions, and remembered denials.
///
/// Without limits, all requests are allowed, uncounted.
#[derive(Clone)]
#[must_use]
pub struct LiveLimits {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The limits in force, with charges that each store replaces by its own.
    limits: ArcSwap<Limits>,
    /// Locked during a replacement. Requests never wait for it.
    state: Mutex<InUse>,
}

#[derive(Default)]
struct InUse {
    /// The configurations of the layers and limiters in use.
    configurations: Vec<Weak<dyn Replace>>,
    recorders: Recorders,
    /// Tasks that follow documents, which this set aborts when the limits are dropped.
    #[cfg(feature = "rules")]
    followers: JoinSet<()>,
}

/// A configuration that is derived from live limits, and replaced with them.
pub(crate) struct Live<T> {
    pub(crate) limits: LiveLimits,
    current: ArcSwap<T>,
    derive: Derive<T>,
}

/// Derives a configuration for other limits from an earlier one.
type Derive<T> = fn(&T, &Limits) -> Result<T, ConfigError>;

/// A configuration that can be replaced.
trait Replace: Send + Sync {
    /// Derives the configuration for other limits, and returns a closure that puts it in force.
    fn prepare(self: Arc<Self>, limits: &Arc<Limits>) -> Result<Box<dyn FnOnce()>, ConfigError>;
}

impl<T: Send + Sync + 'static> Replace for Live<T> {
    fn prepare(self: Arc<Self>, limits: &Arc<Limits>) -> Result<Box<dyn FnOnce()>, ConfigError> {
        let next = (self.derive)(&self.current.load(), limits)?;
        Ok(Box::new(move || self.current.store(Arc::new(next))))
    }
}

impl<T> Live<T> {
    /// Returns the configuration in force, which a request keeps to its end.
    #[inline]
    pub(crate) fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Returns the configuration in force, or `own` without live limits.
    #[inline]
    pub(crate) fn current_or<'a>(live: &Option<Arc<Self>>, own: &'a Arc<T>) -> Cow<'a, Arc<T>> {
        live.as_ref().map_or(Cow::Borrowed(own), |live| Cow::Owned(live.current()))
    }
}

impl LiveLimits {
    /// Creates live limits with these limits at first.
    ///
    /// # Panics
    ///
    /// Panics if [`try_new`](Self::try_new) would return an error.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::try_new(limits))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if there are more than 8,192 limits, if more than 64 may apply to one request, if two have the
    /// same name, if one can never allow its constant cost, has an impossible [overage](Limit::soft), or can't be
    /// [leased](Limit::leased), or if one in [quota mode](Limit::quota_mode) has a penalty.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let inner = Inner { limits: ArcSwap::from_pointee(Limits::new(limits)?), state: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Replaces the limits for all layers and limiters that use them.
    ///
    /// Takes some µs per limit and layer in use. From async code, call it in
    /// [`spawn_blocking`](tokio::task::spawn_blocking) if there are thousands of limits; `rules::watch` and
    /// `RedisStore::follow_rules` do so.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`try_new`](Self::try_new), if an enforced limit can never allow a constant
    /// cost of a layer ([`RateLimitLayer::cost`](crate::RateLimitLayer::cost)), if a store can't keep a limit, if a limit
    /// needs a request while a [`Limiter`](crate::Limiter) uses the limits, and if it needs the end of a body while a
    /// layer with [`keep_body`](crate::RateLimitLayer::keep_body) does. The previous limits then stay in force.
    pub fn replace(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), ConfigError> {
        let limits = Arc::new(Limits::new(limits)?);
        let count = limits.len();
        let state = self.state();
        let in_use = state.configurations.iter().filter_map(Weak::upgrade);
        let prepared = in_use.map(|configuration| configuration.prepare(&limits)).collect::<Result<Vec<_>, _>>()?;
        self.inner.limits.store(limits);
        prepared.into_iter().for_each(|put_in_force| put_in_force());
        let recorders = state.recorders.clone();
        drop(state);
        #[cfg(feature = "tracing")]
        tracing::info!(limits = count, "rate limits were replaced");
        report(&recorders, &Event::LimitsReplaced { limits: count });
        Ok(())
    }

    /// Adds a recorder of [`Event::LimitsReplaced`] and [`Event::LimitsRejected`]. Each event is reported once,
    /// regardless of the number of layers.
    pub fn recorder(self, recorder: impl Recorder) -> Self {
        recorder.prepare(&self.inner.limits.load().names, None);
        self.state().recorders.push(Arc::new(recorder));
        self
    }

    /// Adds a closure that is called with [`Event::LimitsReplaced`] and [`Event::LimitsRejected`]. It is called inline,
    /// so keep it fast.
    pub fn observe(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.recorder(Observer(observer))
    }

    /// Returns the limits in force, in order.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        self.inner.limits.load().to_vec()
    }

    /// Derives a configuration from `base` and the limits in force. As long as it is used, each replacement derives the
    /// next one, and fails if that does.
    pub(crate) fn derive<T: Send + Sync + 'static>(
        &self,
        base: &T,
        derive: Derive<T>,
    ) -> Result<Arc<Live<T>>, ConfigError> {
        let mut state = self.state();
        let current = ArcSwap::from_pointee(derive(base, &self.inner.limits.load())?);
        let live = Arc::new(Live { limits: self.clone(), current, derive });
        state.configurations.retain(|configuration| configuration.strong_count() > 0);
        state.configurations.push(Arc::downgrade(&live) as Weak<dyn Replace>);
        Ok(live)
    }

    /// Spawns a task that is aborted when the limits are dropped.
    #[cfg(feature = "rules")]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.state().followers.spawn(task);
    }

    /// Reports a rejected document.
    #[cfg(feature = "rules")]
    pub(crate) fn report_rejected(&self, error: &(dyn Error + 'static)) {
        #[cfg(feature = "tracing")]
        tracing::error!(
            error = error.to_string().replace('\n', "; "),
            "invalid rate limits were rejected: the previous ones stay in force"
        );
        let recorders = self.state().recorders.clone();
        report(&recorders, &Event::LimitsRejected { error });
    }

    fn state(&self) -> MutexGuard<'_, InUse> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LiveLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveLimits").field(&*self.inner.limits.load()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_layers_leave_nothing_behind() {
        let limits = LiveLimits::new([]);
        let derive = || limits.derive(&(), |(), _| Ok(())).expect("no limits suit everything");
        let used = derive();
        (0..100).for_each(|_| drop(derive()));
        assert!(limits.state().configurations.len() <= 2);
        let value = Arc::downgrade(&used.current());
        drop(used);
        assert!(value.upgrade().is_none());
    }
}
