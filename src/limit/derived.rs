//! The configuration that a layer or limiter derives from live limits, prepared before each replacement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use super::live::LiveLimits;
use super::snapshot::{LimitsSnapshot, Prepare, Retired};

/// A value that is derived from live limits, and kept up to date. Clones share it.
pub(crate) struct Derived<T> {
    limits: LiveLimits,
    cache: Arc<Cache<T>>,
}

struct Cache<T> {
    current: ArcSwapOption<Versioned<T>>,
    pending: Mutex<Pending<T>>,
}

struct Versioned<T> {
    version: u64,
    value: Arc<T>,
}

struct Pending<T> {
    /// The value for limits that are about to take effect, or just did.
    prepared: Option<Arc<Versioned<T>>>,
    /// Whether values are prepared before replacements.
    is_registered: bool,
}

impl<T: Send + Sync + 'static> Derived<T> {
    pub(crate) fn new(limits: LiveLimits) -> Self {
        let pending = Mutex::new(Pending { prepared: None, is_registered: false });
        Self { limits, cache: Arc::new(Cache { current: ArcSwapOption::empty(), pending }) }
    }

    pub(crate) fn live_limits(&self) -> &LiveLimits {
        &self.limits
    }

    /// Returns the value that `derive` makes of `base` and the limits in force. Derives it at the first call, and for
    /// later limits before they take effect, until `base` is dropped.
    ///
    /// All calls must pass the same `base` and `derive`. They are not stored here, because `base` contains this value.
    #[inline]
    pub(crate) fn get<B: Send + Sync + 'static>(
        &self,
        base: &Arc<B>,
        derive: fn(&B, &Arc<LimitsSnapshot>) -> T,
    ) -> Arc<T> {
        let version = self.limits.version();
        let current = self.cache.current.load();
        match current.as_ref().filter(|current| current.version == version) {
            Some(current) => current.value.clone(),
            None => self.refresh(base, derive),
        }
    }

    #[cold]
    fn refresh<B: Send + Sync + 'static>(&self, base: &Arc<B>, derive: fn(&B, &Arc<LimitsSnapshot>) -> T) -> Arc<T> {
        // Concurrent callers wait for the first one to derive the value.
        let mut pending = self.cache.lock_pending();
        let limits = self.limits.snapshot();
        let known = [self.cache.current.load_full(), pending.prepared.clone()];
        if let Some(known) = known.into_iter().flatten().find(|known| known.version == limits.version()) {
            return known.value.clone();
        }
        let value = Arc::new(derive(base, &limits));
        self.cache.current.store(Some(Arc::new(Versioned { version: limits.version(), value: value.clone() })));
        if !std::mem::replace(&mut pending.is_registered, true) {
            self.limits.add_preparer(self.preparer(base, derive));
        }
        value
    }

    fn preparer<B: Send + Sync + 'static>(
        &self,
        base: &Arc<B>,
        derive: fn(&B, &Arc<LimitsSnapshot>) -> T,
    ) -> Arc<Prepare> {
        let (cache, base) = (Arc::downgrade(&self.cache), Arc::downgrade(base));
        Arc::new(move |limits| {
            let (cache, base) = (cache.upgrade()?, base.upgrade()?);
            let prepared = Arc::new(Versioned { version: limits.version(), value: Arc::new(derive(&base, limits)) });
            cache.lock_pending().prepared = Some(prepared.clone());
            Some(Box::new(move || {
                let previous = cache.current.swap(Some(prepared));
                cache.lock_pending().prepared = None;
                previous.map(|previous| previous.value.clone() as Retired)
            }))
        })
    }

    /// Stops sharing the value with other clones. Must be called after `base` was cloned and changed, because its value
    /// now differs from that of the original.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.limits.clone());
    }
}

impl<T> Cache<T> {
    fn lock_pending(&self) -> MutexGuard<'_, Pending<T>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Derived<T> {
    fn clone(&self) -> Self {
        Self { limits: self.limits.clone(), cache: self.cache.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    fn current_thread(_: &(), _: &Arc<LimitsSnapshot>) -> ThreadId {
        thread::current().id()
    }

    #[test]
    fn the_replacing_thread_derives_the_new_values() {
        let limits = LiveLimits::new([]);
        let base = Arc::new(());
        let derived = Derived::new(limits.clone());
        assert_eq!(*derived.get(&base, current_thread), thread::current().id());
        let replace = move || limits.replace([]).map(|()| thread::current().id());
        let replacer = thread::spawn(replace).join().expect("a thread").expect("no limits fit together");
        assert_eq!(*derived.get(&base, current_thread), replacer);
        assert_eq!(*derived.clone().get(&base, current_thread), replacer, "clones share it");
    }

    #[test]
    fn nothing_is_derived_for_dropped_layers() {
        let limits = LiveLimits::new([]);
        let derived = Derived::new(limits.clone());
        let base = Arc::new(());
        let value = Arc::downgrade(&derived.get(&base, |(), _| ()));
        drop((derived, base));
        assert!(value.upgrade().is_none());
        // Only the previous snapshot is retired.
        assert_eq!(limits.replace_retaining([]).map(|retired| retired.len()), Ok(1));
    }
}
