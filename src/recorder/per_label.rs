//! Entries per value of a label, such as the name of a limit.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The entry of the labels that do not fit.
pub(super) const OTHER: &str = "other";

/// A map from the values of a label to entries, such as counters. Entries are never removed: exporters keep their series.
#[derive(Debug)]
pub(super) struct PerLabel<T> {
    entries: RwLock<BTreeMap<Box<str>, Arc<T>>>,
    /// The maximum number of labels. Further ones share the entry [`OTHER`].
    most: usize,
}

impl<T> PerLabel<T> {
    pub(super) const fn new(most: usize) -> Self {
        Self { entries: RwLock::new(BTreeMap::new()), most }
    }

    /// Returns the entry of a label. `create` makes the entry of a new label.
    pub(super) fn get(&self, label: &str, create: impl FnOnce(&str) -> T) -> Arc<T> {
        let kept = |entries: &BTreeMap<Box<str>, Arc<T>>| {
            if entries.len() < self.most || entries.contains_key(label) { label } else { OTHER }
        };
        // A read lock, so that requests do not wait for each other, even if clients always send new values.
        let entries = self.entries();
        if let Some(entry) = entries.get(kept(&entries)) {
            return entry.clone();
        }
        drop(entries);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let label = kept(&entries);
        entries.entry(label.into()).or_insert_with(|| Arc::new(create(label))).clone()
    }

    /// Returns the entries by their labels.
    pub(super) fn entries(&self) -> RwLockReadGuard<'_, BTreeMap<Box<str>, Arc<T>>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_one_entry() {
        let lengths = PerLabel::new(usize::MAX);
        let mut labels: Vec<String> = (0..10_000).map(|number: u32| number.to_string()).collect();
        for _ in 0..2 {
            let len = |label: &String| *lengths.get(label, str::len);
            assert!(labels.iter().all(|label| len(label) == label.len()));
        }
        labels.sort_unstable();
        assert!(lengths.entries().keys().map(|label| &**label).eq(&labels));
    }

    #[test]
    fn labels_that_do_not_fit_share_an_entry() {
        let labels = PerLabel::new(2);
        let entry = |label: &str| labels.get(label, str::to_owned).to_string();
        assert_eq!(["a", "b", "c", "a", "d"].map(entry), ["a", "b", "other", "a", "other"]);
    }
}
