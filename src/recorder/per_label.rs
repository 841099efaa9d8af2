//! Entries per value of a label, such as the name of a limit.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;
use arc_swap::ArcSwap;

/// A map from the values of a label to entries, such as counters. Values are few and soon all known, so readers take no
/// lock.
pub(super) struct PerLabel<T>(ArcSwap<Entries<T>>);

/// Clients choose at most a bounded number of values, so a fast hash is sufficient.
type Entries<T> = HashMap<Box<str>, Arc<T>, RandomState>;

impl<T> PerLabel<T> {
    pub(super) fn new() -> Self {
        Self(ArcSwap::from_pointee(HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4))))
    }

    /// Calls `read` with the entry of a label. `create` makes the entry of a new label.
    pub(super) fn with<R>(&self, label: &str, create: impl Fn(&str) -> T, read: impl FnOnce(&T) -> R) -> R {
        if let Some(entry) = self.0.load().get(label) {
            return read(entry);
        }
        self.0.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.entry(label.into()).or_insert_with(|| Arc::new(create(label)));
            entries
        });
        read(&self.0.load()[label])
    }

    /// Returns all entries with their labels, ordered by label.
    pub(super) fn all(&self) -> Vec<(String, Arc<T>)> {
        let entries = self.0.load();
        let mut all: Vec<_> = entries.iter().map(|(label, entry)| (label.to_string(), entry.clone())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

impl<T> fmt::Debug for PerLabel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.load().keys()).finish()
    }
}
