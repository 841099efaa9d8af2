//! Details of requests, by which the metrics of a limit are split.

use std::collections::HashMap;
use std::sync::Arc;

use crate::decision::{ReportedDetails, RequestDetail};
use crate::key::heads::RequestHead;

/// Computes the details of requests under a limit.
#[derive(Clone)]
pub(super) struct MetricDetail {
    compute: Arc<DetailFn>,
    reported: Arc<ReportedDetails>,
}

type DetailFn = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;

/// The reported details of limits that can be replaced, by their names. They outlive the limits, because exporters keep
/// their series.
pub(super) type DetailsByLimit = HashMap<Arc<str>, Arc<ReportedDetails>>;

impl MetricDetail {
    pub(super) fn new(compute: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { compute: Arc::new(compute), reported: Arc::default() }
    }

    /// Returns the detail of a request.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<RequestDetail> {
        Some(RequestDetail { value: (self.compute)(head)?, reported: self.reported.clone() })
    }

    /// Continues with the reported details of the limit of that name, if there are any.
    pub(super) fn share(&mut self, limit: &Arc<str>, details: &mut DetailsByLimit) {
        self.reported = details.entry(limit.clone()).or_insert_with(|| self.reported.clone()).clone();
    }
}
