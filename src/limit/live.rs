//! Limits that can be replaced at runtime.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use super::definition::Limit;
use super::limits::check_needs_no_request;
use super::metric_detail::DetailsByLimit;
use super::snapshot::{LimitsSnapshot, Prepare, Retired, checked};
use crate::error::{ConfigError, or_panic};
use crate::recorder::{Event, Recorder, Recorders};

/// Limits that can be replaced at runtime: by [`replace`](Self::replace), by a watched file (`Rules::watch`), or by the
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
    inner: Arc<Inner>,
}

struct Inner {
    /// The number of replacements so far.
    version: AtomicU64,
    /// Held during a replacement, and while the constraints on limits change. Requests never wait for it.
    replacing: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    snapshot: Arc<LimitsSnapshot>,
    /// The details of all limits so far.
    details: DetailsByLimit,
    /// The largest constant cost of a layer's requests, which all enforced limits must be able to allow.
    largest_cost: u64,
    /// Whether a limiter uses the limits, which must therefore need no request.
    need_no_request: bool,
    recorders: Recorders,
    /// Tasks that watch documents. Aborted when the limits are dropped.
    watchers: Vec<AbortHandle>,
    /// Derive the configurations of the layers and limiters in use.
    preparers: Vec<Arc<Prepare>>,
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
    /// same name, if one can never allow its constant cost, or has an impossible [overage](Limit::soft), or if one in
    /// [quota mode](Limit::quota_mode) has a penalty.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let (mut limits, mut details) = (checked(limits)?, DetailsByLimit::new());
        limits.share_details(&mut details);
        let state = State {
            snapshot: Arc::new(LimitsSnapshot { version: 0, limits }),
            details,
            largest_cost: 0,
            need_no_request: false,
            recorders: Recorders::default(),
            watchers: Vec::new(),
            preparers: Vec::new(),
        };
        let inner = Inner { version: AtomicU64::new(0), replacing: Mutex::default(), state: Mutex::new(state) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Replaces the limits for all layers and limiters that use them.
    ///
    /// Takes some µs per limit and layer in use. From async code, call it in
    /// [`spawn_blocking`](tokio::task::spawn_blocking) if there are thousands of limits; `Rules::watch` and
    /// `RedisStore::follow_rules` do so.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`try_new`](Self::try_new), if an enforced limit can never allow a constant
    /// cost of a layer ([`RateLimitLayer::cost`](crate::RateLimitLayer::cost)), and if a limit needs a request while a
    /// [`Limiter`](crate::Limiter) uses the limits. The previous limits then stay in force.
    pub fn replace(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), ConfigError> {
        self.replace_retaining(limits).map(drop)
    }

    /// Replaces the limits. Returns the configurations that were in use before, so that the caller can drop them on a
    /// thread where that delays no request.
    ///
    /// The configurations of all layers are prepared first. Then the version is published, and the prepared
    /// configurations are activated. A request in between sees the new version, and uses the prepared configuration.
    pub(crate) fn replace_retaining(
        &self,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Vec<Retired>, ConfigError> {
        let mut limits = checked(limits)?;
        let count = limits.as_slice().len();
        let (retired, recorders) = {
            let _replacing = self.lock_replacing();
            let (version, preparers) = {
                let mut state = self.state();
                limits.check_cost(state.largest_cost)?;
                if state.need_no_request {
                    check_needs_no_request(limits.as_slice())?;
                }
                limits.share_details(&mut state.details);
                (state.snapshot.version + 1, state.preparers.clone())
            };
            let snapshot = Arc::new(LimitsSnapshot { version, limits });
            let prepared: Vec<_> = preparers.iter().map(|prepare| prepare(&snapshot)).collect();
            let (previous, recorders) = {
                let mut state = self.state();
                let previous = std::mem::replace(&mut state.snapshot, snapshot);
                self.inner.version.store(version, Ordering::Release);
                let dropped = preparers.iter().zip(&prepared).filter(|(_, prepared)| prepared.is_none());
                let dropped: Vec<_> = dropped.map(|(preparer, _)| preparer).collect();
                state.preparers.retain(|preparer| !dropped.iter().any(|dropped| Arc::ptr_eq(dropped, preparer)));
                (previous, state.recorders.clone())
            };
            let mut retired: Vec<Retired> = prepared.into_iter().flatten().filter_map(|activate| activate()).collect();
            // Dropped last, because the others refer to it.
            retired.push(previous);
            (retired, recorders)
        };
        #[cfg(feature = "tracing")]
        tracing::info!(limits = count, "rate limits were replaced");
        recorders.event(&Event::LimitsReplaced { limits: count });
        Ok(retired)
    }

    /// Adds a recorder of [`Event::LimitsReplaced`] and [`Event::LimitsRejected`]. Each event is reported once,
    /// regardless of the number of layers.
    pub fn recorder(self, recorder: impl Recorder) -> Self {
        self.state().recorders.add(recorder);
        self
    }

    /// Adds a closure that is called with [`Event::LimitsReplaced`] and [`Event::LimitsRejected`]. It is called inline,
    /// so keep it fast.
    pub fn observe(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.state().recorders.add_observer(observer);
        self
    }

    /// Returns the limits in force, in order.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        self.snapshot().limits.as_slice().to_vec()
    }

    /// Requires all enforced limits, present and future, to be able to allow `cost`.
    pub(crate) fn require_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let _replacing = self.lock_replacing();
        let mut state = self.state();
        state.snapshot.limits.check_cost(cost)?;
        state.largest_cost = state.largest_cost.max(cost);
        Ok(())
    }

    /// Requires all limits, present and future, to need no request.
    pub(crate) fn require_no_request(&self) -> Result<(), ConfigError> {
        let _replacing = self.lock_replacing();
        let mut state = self.state();
        check_needs_no_request(state.snapshot.limits.as_slice())?;
        state.need_no_request = true;
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> Arc<LimitsSnapshot> {
        self.state().snapshot.clone()
    }

    /// Returns the number of replacements so far.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Acquire)
    }

    /// Calls `prepare` with future limits before they take effect.
    pub(super) fn add_preparer(&self, prepare: Arc<Prepare>) {
        self.state().preparers.push(prepare);
    }

    /// Aborts `task` when the limits are dropped.
    #[cfg(feature = "rules")]
    pub(super) fn add_watcher(&self, task: AbortHandle) {
        self.state().watchers.push(task);
    }

    /// Returns a weak reference, as a function that upgrades it.
    #[cfg(feature = "rules")]
    pub(super) fn weak(&self) -> impl Fn() -> Option<Self> + Send + 'static {
        let inner = Arc::downgrade(&self.inner);
        move || Some(Self { inner: inner.upgrade()? })
    }

    /// Reports a rejected document.
    #[cfg(feature = "rules")]
    pub(super) fn report_rejected(&self, error: &(dyn std::error::Error + 'static)) {
        #[cfg(feature = "tracing")]
        tracing::error!(error = one_line(error), "invalid rate limits were rejected: the previous ones stay in force");
        let recorders = self.state().recorders.clone();
        recorders.event(&Event::LimitsRejected { error });
    }

    fn lock_replacing(&self) -> MutexGuard<'_, ()> {
        self.inner.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins the lines of an error, so that it is one line in the log.
#[cfg(all(feature = "rules", feature = "tracing"))]
fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    error.to_string().replace('\n', "; ")
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.watchers.drain(..).for_each(|task| task.abort());
    }
}

impl fmt::Debug for LiveLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveLimits").field(&self.snapshot().limits).finish()
    }
}

#[cfg(all(test, feature = "rules", feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn errors_of_several_lines_are_one_line_in_the_log() {
        let error: Box<dyn std::error::Error> = "1:1: this\n2:1: that".into();
        assert_eq!(one_line(&*error), "1:1: this; 2:1: that");
    }
}
