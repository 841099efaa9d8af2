//! What a layer or a limiter derives from limits that can be replaced, prepared before each replacement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use super::live::{LiveLimits, Prepare, Retired, Set};

/// Keeps what is derived from live limits up to date. Clones share it.
pub(crate) struct Following<T> {
    rules: LiveLimits,
    snapshots: Arc<Snapshots<T>>,
}

struct Snapshots<T> {
    present: ArcSwapOption<Snapshot<T>>,
    next: Mutex<Next<T>>,
}

struct Snapshot<T> {
    version: u64,
    made: Arc<T>,
}

struct Next<T> {
    /// What was made of limits that are about to be replaced, or were a moment ago.
    prepared: Option<Arc<Snapshot<T>>>,
    /// Whether replacements are prepared.
    is_followed: bool,
}

impl<T: Send + Sync + 'static> Following<T> {
    pub(crate) fn new(rules: LiveLimits) -> Self {
        let next = Mutex::new(Next { prepared: None, is_followed: false });
        Self { rules, snapshots: Arc::new(Snapshots { present: ArcSwapOption::empty(), next }) }
    }

    pub(crate) fn rules(&self) -> &LiveLimits {
        &self.rules
    }

    /// Returns what `make` derives from `base` and the present limits. It is made once, and for later limits
    /// before they take effect, for as long as there is `base`.
    #[inline]
    pub(crate) fn present<B: Send + Sync + 'static>(&self, base: &Arc<B>, make: fn(&B, &Arc<Set>) -> T) -> Arc<T> {
        let version = self.rules.version();
        let present = self.snapshots.present.load();
        match present.as_ref().filter(|present| present.version == version) {
            Some(present) => present.made.clone(),
            None => self.renew(base, make),
        }
    }

    #[cold]
    fn renew<B: Send + Sync + 'static>(&self, base: &Arc<B>, make: fn(&B, &Arc<Set>) -> T) -> Arc<T> {
        // Others that come at the same time wait for what this one makes.
        let mut next = self.snapshots.next();
        let set = self.rules.set();
        let known = [self.snapshots.present.load_full(), next.prepared.clone()];
        if let Some(known) = known.into_iter().flatten().find(|known| known.version == set.version()) {
            return known.made.clone();
        }
        let made = Arc::new(make(base, &set));
        let snapshot = Snapshot { version: set.version(), made: made.clone() };
        self.snapshots.present.store(Some(Arc::new(snapshot)));
        if !std::mem::replace(&mut next.is_followed, true) {
            self.rules.follow(self.prepare(base, make));
        }
        made
    }

    fn prepare<B: Send + Sync + 'static>(&self, base: &Arc<B>, make: fn(&B, &Arc<Set>) -> T) -> Arc<Prepare> {
        let (snapshots, base) = (Arc::downgrade(&self.snapshots), Arc::downgrade(base));
        Arc::new(move |set| {
            let (snapshots, base) = (snapshots.upgrade()?, base.upgrade()?);
            let prepared = Arc::new(Snapshot { version: set.version(), made: Arc::new(make(&base, set)) });
            snapshots.next().prepared = Some(prepared.clone());
            Some(Box::new(move || {
                let before = snapshots.present.swap(Some(prepared));
                snapshots.next().prepared = None;
                before.map(|before| before.made.clone() as Retired)
            }))
        })
    }

    /// Starts anew for a copy that derives something else.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.rules.clone());
    }
}

impl<T> Snapshots<T> {
    fn next(&self) -> MutexGuard<'_, Next<T>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Following<T> {
    fn clone(&self) -> Self {
        Self { rules: self.rules.clone(), snapshots: self.snapshots.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    fn maker(_: &(), _: &Arc<Set>) -> ThreadId {
        thread::current().id()
    }

    #[test]
    fn whoever_replaces_limits_prepares_them_for_those_in_use() {
        let rules = LiveLimits::new([]);
        let base = Arc::new(());
        let following = Following::new(rules.clone());
        assert_eq!(*following.present(&base, maker), thread::current().id());
        let replace = move || rules.replace([]).map(|()| thread::current().id());
        let replacer = thread::spawn(replace).join().expect("a thread").expect("no limits fit together");
        assert_eq!(*following.present(&base, maker), replacer);
        assert_eq!(*following.clone().present(&base, maker), replacer, "clones share it");
    }

    #[test]
    fn nothing_is_prepared_for_those_that_are_gone() {
        let rules = LiveLimits::new([]);
        let following = Following::new(rules.clone());
        let base = Arc::new(());
        let made = Arc::downgrade(&following.present(&base, |(), _| ()));
        drop((following, base));
        assert!(made.upgrade().is_none());
        // The old set is all that is retired.
        assert_eq!(rules.replace_retaining([]).map(|retired| retired.len()), Ok(1));
    }
}
