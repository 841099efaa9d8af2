//! Values kept for each limit, by its name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;
use arc_swap::ArcSwap;

/// A value for each limit, or for each detail of a limit, that was seen. There are few of them, and all are known after
/// their first decision. So reading takes no lock.
pub(super) struct PerLimit<T>(ArcSwap<Values<T>>);

/// Clients do not choose the names of limits, so a fast hash is sufficient.
type Values<T> = HashMap<Box<str>, Arc<T>, RandomState>;

impl<T> PerLimit<T> {
    pub(super) fn new() -> Self {
        Self(ArcSwap::from_pointee(HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4))))
    }

    /// Calls `read` with the value of a limit. For a new limit, `create` makes the value.
    pub(super) fn with<R>(&self, limit: &str, create: impl Fn(&str) -> T, read: impl FnOnce(&T) -> R) -> R {
        if let Some(value) = self.0.load().get(limit) {
            return read(value);
        }
        self.0.rcu(|values| {
            let mut values = HashMap::clone(values);
            values.entry(limit.into()).or_insert_with(|| Arc::new(create(limit)));
            values
        });
        read(&self.0.load()[limit])
    }

    /// Returns all values with the names of their limits, ordered by name.
    pub(super) fn all(&self) -> Vec<(String, Arc<T>)> {
        let values = self.0.load();
        let mut all: Vec<_> = values.iter().map(|(limit, value)| (limit.to_string(), value.clone())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

impl<T> fmt::Debug for PerLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.load().keys()).finish()
    }
}
