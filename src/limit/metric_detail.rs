//! A label that splits the metrics of a limit.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::request::RequestHead;

/// The maximum number of distinct values of a limit's label. Further values are reported as [`OTHER`].
const MAX_VALUES: usize = 100;
/// The maximum length of a value, in bytes. Longer values are reported as [`OTHER`].
const MAX_LEN: usize = 128;

static OTHER: LazyLock<Arc<str>> = LazyLock::new(|| "other".into());

/// Computes the label of requests, and bounds the number of its values.
pub(super) struct MetricDetail {
    label: Box<LabelFn>,
    values: RwLock<HashSet<Arc<str>>>,
}

type LabelFn = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;

impl MetricDetail {
    pub(super) fn new(label: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { label: Box::new(label), values: RwLock::default() }
    }

    /// Returns the value for a request.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<Arc<str>> {
        let value = (self.label)(head)?;
        if value.len() > MAX_LEN {
            return Some(OTHER.clone());
        }
        // A read lock, so that requests do not wait for each other, even if clients always send new values.
        let known = {
            let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
            let is_full = values.len() >= MAX_VALUES;
            values.get(value.as_str()).cloned().or_else(|| is_full.then(|| OTHER.clone()))
        };
        Some(known.unwrap_or_else(|| self.add(value)))
    }

    fn add(&self, value: String) -> Arc<str> {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        // Another request may have added the value, or the last one that fits.
        if let Some(known) = values.get(value.as_str()) {
            return known.clone();
        }
        if values.len() >= MAX_VALUES {
            return OTHER.clone();
        }
        let value: Arc<str> = value.into();
        values.insert(value.clone());
        value
    }
}
