//! Counters that differ by the value of one label.

use std::sync::OnceLock;

use metrics::{Counter, Label, counter};

/// Counters of one name, one for each value of a label. A counter is registered when it is first needed, so that no
/// series is exported that can't occur.
#[derive(Debug)]
pub(super) struct CounterFamily<const VALUES: usize> {
    name: &'static str,
    label: &'static str,
    counters: [OnceLock<Counter>; VALUES],
}

impl<const VALUES: usize> CounterFamily<VALUES> {
    pub(super) fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label, counters: [const { OnceLock::new() }; VALUES] }
    }

    /// Returns the counter of the label's value with this index, which has the `common` labels, too.
    pub(super) fn counter(&self, index: usize, value: &'static str, common: &[Label]) -> &Counter {
        self.counters[index].get_or_init(|| counter!(self.name, with_labels(common, [(self.label, value)])))
    }
}

/// Returns the common labels and those of one metric.
pub(super) fn with_labels<const N: usize>(common: &[Label], labels: [(&'static str, &str); N]) -> Vec<Label> {
    let labels = labels.into_iter().map(|(name, value)| Label::new(name, value.to_owned()));
    common.iter().cloned().chain(labels).collect()
}
