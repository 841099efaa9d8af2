//! Limits that can be replaced at runtime.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
/// use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer, key};
///
/// let hourly = |requests| [Limit::new("hourly", FixedWindow::per_hour(requests)).by(key::peer_ip())];
/// let rules = LiveLimits::new(hourly(100));
/// let app: Router = Router::new().layer(RateLimitLayer::with_live_limits(&rules));
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
///   request that comes once [`replace`](Self::replace) has returned goes by the new ones. None is refused or delayed
///   for it: `replace` prepares the new limits for every layer in use (and for each of its
///   [costs](crate::RateLimitLayer::cost)) before they take effect.
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
pub struct LiveLimits {
    inner: Arc<Inner>,
}

struct Inner {
    /// How often they were replaced.
    version: AtomicU64,
    /// Held while limits are replaced, and while what they are checked against changes. Requests never wait for it.
    replacing: Mutex<()>,
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
    /// Prepare the snapshots of those in use for other limits.
    followers: Vec<Arc<Prepare>>,
}

/// Prepares a follower for other limits. Returns how to put that in use, or `None` when the follower is gone.
pub(super) type Prepare = dyn Fn(&Arc<Set>) -> Option<PutInUse> + Send + Sync;

/// Puts in use what was prepared, and returns what was in use before.
pub(super) type PutInUse = Box<dyn FnOnce() -> Option<Retired>>;

/// What is no longer in use, except by requests in flight.
pub(super) type Retired = Arc<dyn Any + Send + Sync>;

/// Limits that were found to fit together.
pub(crate) struct Set {
    version: u64,
    /// With spec for no store in particular.
    limits: Limits,
}

impl LiveLimits {
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
            followers: Vec::new(),
        };
        let inner = Inner { version: AtomicU64::new(0), replacing: Mutex::default(), state: Mutex::new(state) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Other limits, at once, for all who go by these.
    ///
    /// It takes some µs per limit for each layer in use. From async code, call it in
    /// [`spawn_blocking`](tokio::task::spawn_blocking) when there are thousands of limits;
    /// `Rules::watch` and `RedisStore::follow_rules` do so.
    ///
    /// # Errors
    ///
    /// As for [`try_new`](Self::try_new); when one of them could never allow a constant cost that a layer by
    /// these rules was made with ([`RateLimitLayer::cost`](crate::RateLimitLayer::cost)), be that in use or not;
    /// and when one needs a request, and a [`Limiter`](crate::Limiter) goes by them. Then the old ones stay.
    pub fn replace(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), ConfigError> {
        self.replace_retaining(limits).map(drop)
    }

    /// Like [`replace`](Self::replace), and returns what was in use before. Requests in flight may still use it: kept
    /// until they end, it can be dropped where that holds up nobody.
    pub(super) fn replace_retaining(
        &self,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Vec<Retired>, ConfigError> {
        let limits = some(limits)?;
        let count = limits.as_slice().len();
        let (retired, observer) = {
            let _replacing = self.replacing();
            let (version, followers) = {
                let state = self.state();
                limits.can_hold(state.largest_cost)?;
                if state.are_plain {
                    are_plain(limits.as_slice())?;
                }
                (state.set.version + 1, state.followers.clone())
            };
            let set = Arc::new(Set { version, limits });
            let prepared: Vec<_> = followers.iter().map(|prepare| prepare(&set)).collect();
            let (old, observer) = {
                let mut state = self.state();
                let old = std::mem::replace(&mut state.set, set);
                self.inner.version.store(version, Ordering::Release);
                let gone = followers.iter().zip(&prepared).filter(|(_, prepared)| prepared.is_none());
                let gone: Vec<_> = gone.map(|(follower, _)| follower).collect();
                state.followers.retain(|follower| !gone.iter().any(|gone| Arc::ptr_eq(gone, follower)));
                (old, state.observer.clone())
            };
            let mut retired: Vec<Retired> =
                prepared.into_iter().flatten().filter_map(|put_in_use| put_in_use()).collect();
            // Snapshots refer to it, so it goes last.
            retired.push(old);
            (retired, observer)
        };
        #[cfg(feature = "tracing")]
        tracing::info!(limits = count, "rate limits were replaced");
        observer.tell(&Event::RulesReplaced { limits: count });
        Ok(retired)
    }

    /// Tells a closure when they are replaced ([`Event::RulesReplaced`]) and when a document that they follow
    /// is refused ([`Event::RulesRejected`]), once, however many layers go by them. Said twice, the last counts.
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
        let _replacing = self.replacing();
        let mut state = self.state();
        state.set.limits.can_hold(cost)?;
        state.largest_cost = state.largest_cost.max(cost);
        Ok(())
    }

    /// Refuses limits that need a request, from now on.
    pub(crate) fn stay_plain(&self) -> Result<(), ConfigError> {
        let _replacing = self.replacing();
        let mut state = self.state();
        are_plain(state.set.limits.as_slice())?;
        state.are_plain = true;
        Ok(())
    }

    pub(crate) fn set(&self) -> Arc<Set> {
        self.state().set.clone()
    }

    /// How often they were replaced.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Acquire)
    }

    /// Has `prepare` called with the limits that replace these, before they take effect.
    pub(super) fn follow(&self, prepare: Arc<Prepare>) {
        self.state().followers.push(prepare);
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
        observer.tell(&Event::RulesRejected { error });
    }

    fn replacing(&self) -> MutexGuard<'_, ()> {
        self.inner.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The spec are made anew by whoever goes by them, for its own store.
fn some(limits: impl IntoIterator<Item = Limit>) -> Result<Limits, ConfigError> {
    Limits::new(limits.into_iter().collect(), &KeyHasher::with_secret([0; 16]))
}

impl Set {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Its limits, with spec for a store that hashes by `hasher`.
    pub(crate) fn limits(&self, hasher: &KeyHasher) -> Limits {
        let mut limits = self.limits.clone();
        limits.set_hasher(hasher);
        limits
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl fmt::Debug for LiveLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveLimits").field(&self.set().limits).finish()
    }
}
