//! Counters that differ by the value of one label.

use metrics::{Counter, Label, counter};

use crate::recorder::per_label::PerLabel;

/// Counters of one name, one for each value of a label. A counter is registered when it is first needed, so that no
/// series is exported that can't occur.
#[derive(Debug)]
pub(super) struct CounterFamily {
    name: &'static str,
    label: &'static str,
    counters: PerLabel<Counter>,
}

impl CounterFamily {
    pub(super) fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label, counters: PerLabel::new() }
    }

    /// Increments the counter of a value of the label. The counter has the `common` labels, too.
    pub(super) fn increment(&self, value: &str, by: u64, common: &[Label]) {
        let create = |value: &str| counter!(self.name, with_labels(common, [(self.label, value)]));
        self.counters.get(value, create).increment(by);
    }
}

/// Returns the common labels and those of one metric.
pub(super) fn with_labels<const N: usize>(common: &[Label], labels: [(&'static str, &str); N]) -> Vec<Label> {
    let labels = labels.into_iter().map(|(name, value)| Label::new(name, value.to_owned()));
    common.iter().cloned().chain(labels).collect()
}
