//! A label that splits the metrics of a limit.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use crate::request::RequestHead;

/// The most values of a limit's detail. Further values are reported as `other`.
const MAX_VALUES: usize = 100;
/// The length of the longest value, in bytes. Longer values are reported as `other`.
const MAX_LEN: usize = 128;

/// Computes the detail of requests, and bounds the number of its values.
pub(super) struct MetricDetail {
    detail: Box<DetailFn>,
    values: RwLock<HashSet<Arc<str>>>,
}

type DetailFn = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;

impl MetricDetail {
    pub(super) fn new(detail: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { detail: Box::new(detail), values: RwLock::default() }
    }

    /// Returns the detail of a request.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<Arc<str>> {
        let detail = (self.detail)(head)?;
        if let Some(known) = self.values.read().unwrap_or_else(PoisonError::into_inner).get(detail.as_str()) {
            return Some(known.clone());
        }
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        if values.len() >= MAX_VALUES || detail.len() > MAX_LEN {
            return Some("other".into());
        }
        let detail: Arc<str> = detail.into();
        values.insert(detail.clone());
        Some(detail)
    }
}
