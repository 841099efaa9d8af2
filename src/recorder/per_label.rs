//! A map from the values of a label, which clients may choose, to counters.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;

/// The label of the entry that labels share if they do not fit.
pub(super) const OTHER: &str = "other";

/// The maximum length of a label in bytes. Clients may choose labels, but no limit has a longer name.
const MAX_LABEL: usize = 128;

/// A map from the values of a label to entries, such as counters. Entries are never removed: exporters keep their
/// series. So readers take no lock, and a new entry copies nothing: it is a leaf of a hash tree. Labels beyond the
/// first `MAX` share an entry, and so do those that are too long.
pub(super) struct PerLabel<T, const MAX: usize = { usize::MAX }> {
    root: Slot<T>,
    /// The number of labels with entries of their own.
    count: AtomicUsize,
    other: OnceLock<Box<T>>,
}

/// `None` if there was no room for the first label with this place.
type Slot<T> = OnceLock<Option<Box<LabelNode<T>>>>;

struct LabelNode<T> {
    label: Box<str>,
    entry: T,
    /// The nodes below, by the next digit of their labels' hashes.
    children: [Slot<T>; BASE],
}

/// The base of a hash's digits. 8,000 labels have a depth of about 6.
const BASE: usize = 8;

/// Clients choose at most a bounded number of labels, so a fast hash is sufficient.
const HASHER: RandomState = RandomState::with_seeds(1, 2, 3, 4);

impl<T, const MAX: usize> Default for PerLabel<T, MAX> {
    fn default() -> Self {
        Self { root: OnceLock::new(), count: AtomicUsize::new(0), other: OnceLock::new() }
    }
}

impl<T, const MAX: usize> PerLabel<T, MAX> {
    /// Returns the entry of a label. `create` makes the entry of a new label.
    pub(super) fn get(&self, label: &str, create: impl Fn(&str) -> T) -> &T {
        let add = || {
            let next = |count| (count < MAX).then_some(count + 1);
            self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
            Some(Box::new(LabelNode { label: label.into(), entry: create(label), children: Default::default() }))
        };
        let (mut slot, mut hash) = (&self.root, HASHER.hash_one(label) as usize);
        while label.len() <= MAX_LABEL
            && let Some(node) = slot.get_or_init(add)
        {
            if *node.label == *label {
                return &node.entry;
            }
            (slot, hash) = (&node.children[hash % BASE], hash / BASE);
        }
        self.other.get_or_init(|| Box::new(create(OTHER)))
    }

    /// Returns the entries with their labels, ordered by label, without the shared one.
    pub(super) fn entries(&self) -> Vec<(&str, &T)> {
        let mut entries = Vec::new();
        let mut slots = vec![&self.root];
        while let Some(slot) = slots.pop() {
            if let Some(Some(node)) = slot.get() {
                entries.push((&*node.label, &node.entry));
                slots.extend(&node.children);
            }
        }
        entries.sort_unstable_by_key(|(label, _)| *label);
        entries
    }
}

impl<T, const MAX: usize> fmt::Debug for PerLabel<T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerLabel").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_one_entry() {
        let lengths: PerLabel<usize> = PerLabel::default();
        let mut labels: Vec<String> = (0..10_000).map(|number: u32| number.to_string()).collect();
        for _ in 0..2 {
            let len = |label: &String| *lengths.get(label, str::len);
            assert!(labels.iter().all(|label| len(label) == label.len()));
        }
        labels.sort_unstable();
        assert!(lengths.entries().into_iter().map(|(label, _)| label).eq(&labels));
    }

    #[test]
    fn labels_that_do_not_fit_share_an_entry() {
        let labels: PerLabel<String, 2> = PerLabel::default();
        let entry = |label: &str| labels.get(label, str::to_owned).to_string();
        let long = "x".repeat(MAX_LABEL + 1);
        assert_eq!([&long, "a", "b", "c", "a", "d"].map(entry), ["other", "a", "b", "other", "a", "other"]);
    }
}
