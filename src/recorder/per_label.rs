//! Entries per value of a label, such as the name of a limit.

use std::fmt;
use std::sync::OnceLock;

use ahash::RandomState;

/// A map from the values of a label to entries, such as counters. Entries are never removed, so readers take no lock,
/// and a new entry copies nothing: it is a leaf of a hash tree.
pub(super) struct PerLabel<T>(Slot<T>);

type Slot<T> = OnceLock<Box<LabelNode<T>>>;

struct LabelNode<T> {
    label: Box<str>,
    entry: T,
    /// The nodes below, by the next digit of their labels' hashes.
    children: [Slot<T>; BASE],
}

/// The base of a hash's digits. 8,000 labels have a depth of about 6.
const BASE: usize = 8;

/// Clients choose at most a bounded number of values, so a fast hash is sufficient.
const HASHER: RandomState = RandomState::with_seeds(1, 2, 3, 4);

impl<T> PerLabel<T> {
    pub(super) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the entry of a label. `create` makes the entry of a new label.
    pub(super) fn get(&self, label: &str, create: impl Fn(&str) -> T) -> &T {
        let node = || Box::new(LabelNode { label: label.into(), entry: create(label), children: Default::default() });
        let (mut slot, mut hash) = (&self.0, HASHER.hash_one(label) as usize);
        loop {
            let node = slot.get_or_init(node);
            if *node.label == *label {
                return &node.entry;
            }
            (slot, hash) = (&node.children[hash % BASE], hash / BASE);
        }
    }

    /// Returns all entries with their labels, ordered by label.
    pub(super) fn all(&self) -> Vec<(&str, &T)> {
        let mut all = Vec::new();
        let mut slots = vec![&self.0];
        while let Some(slot) = slots.pop() {
            if let Some(node) = slot.get() {
                all.push((&*node.label, &node.entry));
                slots.extend(&node.children);
            }
        }
        all.sort_unstable_by_key(|(label, _)| *label);
        all
    }
}

impl<T> fmt::Debug for PerLabel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all().iter().map(|(label, _)| label)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_one_entry() {
        let lengths = PerLabel::new();
        let mut labels: Vec<String> = (0..10_000).map(|number: u32| number.to_string()).collect();
        for _ in 0..2 {
            let len = |label: &String| *lengths.get(label, str::len);
            assert!(labels.iter().all(|label| len(label) == label.len()));
        }
        labels.sort_unstable();
        assert!(lengths.all().into_iter().map(|(label, _)| label).eq(&labels));
    }
}
