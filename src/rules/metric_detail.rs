//! Splits the metrics of a limit by the values that its descriptors match.

use std::sync::Arc;

use super::descriptor::{Descriptor, ValueMatcher};
use super::extractors::Named;
use crate::key::{KeyExtractor, KeyPart};
use crate::request::RequestHead;

/// The path of a limit, with the values of the request at the descriptors that ask for them.
pub(super) struct MetricDetail {
    parts: Vec<MetricPart>,
}

/// One descriptor of the path.
pub(super) struct MetricPart {
    key: String,
    value: MetricValue,
}

enum MetricValue {
    /// The value in the file, if it has one.
    Configured(Option<String>),
    /// The value of the request.
    Request(Arc<dyn KeyExtractor>),
}

impl MetricDetail {
    /// Returns `None` if no part depends on the request.
    pub(super) fn new(parts: Vec<MetricPart>) -> Option<Self> {
        let depends = parts.iter().any(|part| matches!(part.value, MetricValue::Request(_)));
        depends.then_some(Self { parts })
    }

    /// Returns the detail of a request, such as `header.x-plan_pro.path_/search`.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> String {
        let parts = self.parts.iter().map(|MetricPart { key, value }| match value {
            MetricValue::Configured(value) => part(key, value.as_deref()),
            MetricValue::Request(extractor) => part(key, value_of(&**extractor, head).as_deref()),
        });
        parts.collect::<Vec<_>>().join(".")
    }
}

impl MetricPart {
    /// Creates the part of a descriptor. With an extractor, it shows the value of the request, unless all values share a
    /// bucket.
    pub(super) fn new(descriptor: &Descriptor, extractor: Option<&Named>) -> Self {
        let is_fixed = descriptor.share_threshold || matches!(descriptor.value, ValueMatcher::Exact(_));
        let value = match extractor {
            Some(named) if !is_fixed => MetricValue::Request(named.extractor.clone()),
            _ => MetricValue::Configured(descriptor.value.as_str().map(str::to_owned)),
        };
        Self { key: descriptor.key.clone(), value }
    }
}

/// Returns a part of a path, as Envoy's rate limit service writes it in the names of metrics.
pub(super) fn part(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))
}

/// Returns the value of a request. `None` if it has none, or if it is found asynchronously.
fn value_of(extractor: &dyn KeyExtractor, head: &RequestHead<'_>) -> Option<String> {
    let mut parts = extractor.describe(head);
    parts.iter_mut().for_each(KeyPart::reveal);
    let values: Option<Vec<_>> = parts.iter().map(KeyPart::value).collect();
    values.filter(|values| !values.is_empty()).map(|values| values.join(","))
}
