//! Limits that are replaced while they are gone by.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::task::AbortHandle;

use super::{Limit, Limits, are_plain};
use crate::error::{ConfigError, or_panic};
use crate::hash::KeyHasher;
use crate::observe::{Event, Observer};

/// Limits that can be replaced while requests go by them: by hand, by a file that is watched
/// (`Rules::watch`), or by what a fleet keeps in Redis (`RedisStore::follow_rules`). Its clones are the same.
///
/// ```
/// use axum::Router;
/// use tower_ratelimit::{FixedWindow, Limit, LiveRules, RateLimitLayer, key};
///
/// let hourly = |requests| [Limit::new("hourly", FixedWindow::per_hour(requests)).by(key::peer_ip())];
/// let rules = LiveRules::new(hourly(100));
/// let app: Router = Router::new().layer(RateLimitLayer::by_rules(&rules));
///
/// // Later, from an admin's request, say: who has used 80 of 100 has 120 left.
/// rules.replace(hourly(200))?;
/// # let _ = app;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// # What a switch does
///
/// - A request goes by the limits that there were when it came, to its end: by their keys, costs and headers,
///   on a route with a cost of its own too, and with whatever its [`Permit`](crate::Permit) does later. A
///   request that comes once [`replace`](Self::replace) has returned goes by the new ones. None is refused for it.
///   The first that comes then by each layer (and by each of its [costs](crate::RateLimitLayer::cost)) works out
///   what it goes by, which takes some µs for each limit, and others wait for that.
/// - **What was used counts on** under each limit that has the same name, algorithm and period as before (and of a
///   token bucket, that fills in the same way; of a sliding window, that has as many buckets),
///   whatever else of it is new. A limit that is gone does not apply any more; what keys have used of it is
///   forgotten when it would be anyway. If it comes back before that, it counts.
/// - The layer's own settings stay, with all that it knows: its store, circuit breaker, local decisions,
///   remembered denials.
///
/// The limits may be none at all: then everything goes on, uncounted.
#[derive(Clone)]
#[must_use]
pub struct LiveRules {
    inner: Arc<Inner>,
}

struct Inner {
    /// How often they were replaced.
    version: AtomicU64,
    state: Mutex<State>,
}

struct State {
    set: Arc<Set>,
    /// What some layer's requests cost.
    largest_cost: u64,
    /// A limiter without requests goes by them.
    are_plain: bool,
    observer: Observer,
    /// What keeps them at a document. Nothing, once nobody goes by them any more.
    tasks: Vec<AbortHandle>,
}

/// Limits that were found to fit together.
pub(crate) struct Set {
    version: u64,
    /// With terms for no store in particular.
    limits: Limits,
}

impl LiveRules {
    /// These limits, until they are replaced.
    ///
    /// # Panics
    ///
    /// When more than 64 may apply to one request, two have one name, or one has a constant cost over its
    /// capacity. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::try_new(limits))
    }

    /// Like [`new`](Self::new), for limits that are not known to be right.
    ///
    /// # Errors
    ///
    /// When more than 64 may apply to one request, two have one name, or one has a constant cost over its
    /// capacity.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let state = State {
            set: Arc::new(Set { version: 0, limits: some(limits)? }),
            largest_cost: 0,
            are_plain: false,
            observer: Observer::default(),
            tasks: Vec::new(),
        };
        Ok(Self { inner: Arc::new(Inner { version: AtomicU64::new(0), state: Mutex::new(state) }) })
    }

    /// Other limits, at once, for all who go by these.
    ///
    /// # Errors
    ///
    /// As for [`try_new`](Self::try_new); when one of them could never allow a constant cost that a layer by
    /// these rules was made with ([`RateLimitLayer::cost`](crate::RateLimitLayer::cost)), be that in use or not;
    /// and when one needs a request, and a [`Limiter`](crate::Limiter) goes by them. Then the old ones stay.
    pub fn replace(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), ConfigError> {
        let limits = some(limits)?;
        let count = limits.as_slice().len();
        let (old, observer) = {
            let mut state = self.state();
            limits.can_hold(state.largest_cost)?;
            if state.are_plain {
                are_plain(limits.as_slice())?;
            }
            let version = state.set.version + 1;
            let old = std::mem::replace(&mut state.set, Arc::new(Set { version, limits }));
            self.inner.version.store(version, Ordering::Release);
            (old, state.observer.clone())
        };
        // What it holds of the user's may do anything when it is dropped.
        drop(old);
        #[cfg(feature = "tracing")]
        tracing::info!(limits = count, "rate limits were replaced");
        observer.tell(&Event::RulesReplaced { limits: count });
        Ok(())
    }

    /// Tells a closure when they are replaced ([`Event::RulesReplaced`]) and when a document that they follow
    /// is refused ([`Event::RulesRefused`]), once, however many layers go by them. Said twice, the last counts.
    pub fn observe(self, tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.state().observer = Observer::new(tell);
        self
    }

    /// The limits that a request would go by now, in the order in which they were given.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        self.set().limits.as_slice().to_vec()
    }

    /// Refuses a cost that could never pass, and limits that could never pass it from now on.
    pub(crate) fn hold(&self, cost: u64) -> Result<(), ConfigError> {
        let mut state = self.state();
        state.set.limits.can_hold(cost)?;
        state.largest_cost = state.largest_cost.max(cost);
        Ok(())
    }

    /// Refuses limits that need a request, from now on.
    pub(crate) fn stay_plain(&self) -> Result<(), ConfigError> {
        let mut state = self.state();
        are_plain(state.set.limits.as_slice())?;
        state.are_plain = true;
        Ok(())
    }

    pub(crate) fn set(&self) -> Arc<Set> {
        self.state().set.clone()
    }

    /// Has `task` ended when nobody goes by them any more.
    #[cfg(feature = "rules")]
    pub(super) fn keep(&self, task: AbortHandle) {
        self.state().tasks.push(task);
    }

    /// These, for whoever does not keep them in use.
    #[cfg(feature = "rules")]
    pub(super) fn weak(&self) -> impl Fn() -> Option<Self> + Send + 'static {
        let inner = Arc::downgrade(&self.inner);
        move || Some(Self { inner: inner.upgrade()? })
    }

    /// Tells that a document is refused.
    #[cfg(feature = "rules")]
    pub(super) fn refuse(&self, error: &(dyn std::error::Error + 'static)) {
        #[cfg(feature = "tracing")]
        tracing::error!(error, "new rate limits are refused: the old ones stay");
        let observer = self.state().observer.clone();
        observer.tell(&Event::RulesRefused { error });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The terms are made anew by whoever goes by them, for its own store.
fn some(limits: impl IntoIterator<Item = Limit>) -> Result<Limits, ConfigError> {
    Limits::of(limits.into_iter().collect(), &KeyHasher::with_secret([0; 16]))
}

impl Set {
    /// Its limits, with terms for a store that hashes by `hasher`.
    pub(crate) fn limits(&self, hasher: &KeyHasher) -> Limits {
        let mut limits = self.limits.clone();
        limits.hash_by(hasher);
        limits
    }
}

/// What is made of live rules by one who goes by them, as they are.
pub(crate) struct Following<T> {
    rules: LiveRules,
    present: ArcSwapOption<Present<T>>,
    making: Mutex<()>,
}

struct Present<T> {
    version: u64,
    made: Arc<T>,
}

impl<T> Following<T> {
    pub(crate) fn new(rules: LiveRules) -> Self {
        Self { rules, present: ArcSwapOption::empty(), making: Mutex::new(()) }
    }

    pub(crate) fn rules(&self) -> &LiveRules {
        &self.rules
    }

    /// What was made of the present rules, or is now: once, whoever comes at the same time waits.
    #[inline]
    pub(crate) fn present(&self, make: impl FnOnce(&Arc<Set>) -> T) -> Arc<T> {
        let version = self.rules.inner.version.load(Ordering::Acquire);
        self.made(version).unwrap_or_else(|| self.renew(make))
    }

    #[inline]
    fn made(&self, version: u64) -> Option<Arc<T>> {
        let present = self.present.load();
        present.as_ref().filter(|present| present.version == version).map(|present| present.made.clone())
    }

    #[cold]
    fn renew(&self, make: impl FnOnce(&Arc<Set>) -> T) -> Arc<T> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.rules.set();
        self.made(set.version).unwrap_or_else(|| {
            let made = Arc::new(make(&set));
            self.present.store(Some(Arc::new(Present { version: set.version, made: made.clone() })));
            made
        })
    }

    /// Has all made anew, as it is to be made in another way.
    pub(crate) fn forget(&self) {
        self.present.store(None);
    }
}

/// What was made by one is not what another makes.
impl<T> Clone for Following<T> {
    fn clone(&self) -> Self {
        Self::new(self.rules.clone())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl fmt::Debug for LiveRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveRules").field(&self.set().limits).finish()
    }
}
