//! A label that splits the metrics of a limit.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::builder::Limit;
use crate::request::RequestHead;

/// The most values of a limit's detail. Further values are reported as `other`.
const MAX_VALUES: usize = 100;

/// Computes the detail of requests, and bounds the number of its values.
pub(super) struct MetricDetail {
    detail: Box<DetailFn>,
    values: Mutex<HashSet<Arc<str>>>,
}

type DetailFn = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;

impl Limit {
    /// Splits the metrics of the limit by a detail of the request, such as its plan. `None` adds none.
    ///
    /// [`LimitRecord::detail`](crate::LimitRecord::detail) returns it to recorders, and `MetricsRecorder` adds it to its
    /// metrics as the label `detail`. A limit has at most 100 details: further ones are reported as `other`, so that the
    /// number of series stays bounded whatever clients send. Called inline for each request; must be fast and must not
    /// block.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// let limit = Limit::new("burst", TokenBucket::per_second(10))
    ///     .by(key::header("x-api-key"))
    ///     .metric_detail(|head| Some(head.header("x-plan")?.to_owned()));
    /// # let _ = limit;
    /// ```
    pub fn metric_detail(self, detail: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        let detail = MetricDetail { detail: Box::new(detail), values: Mutex::default() };
        Self { metric_detail: Some(Arc::new(detail)), ..self }
    }
}

impl MetricDetail {
    /// Returns the detail of a request.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<Arc<str>> {
        let detail = (self.detail)(head)?;
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = values.get(detail.as_str()) {
            return Some(known.clone());
        }
        if values.len() >= MAX_VALUES {
            return Some("other".into());
        }
        let detail: Arc<str> = detail.into();
        values.insert(detail.clone());
        Some(detail)
    }
}
