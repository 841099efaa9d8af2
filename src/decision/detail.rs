//! Details of requests as recorders see them, at most 100 per limit.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The maximum number of distinct details of a limit. Further ones are reported as [`OTHER`].
const MAX_DETAILS: usize = 100;
/// The maximum length of a detail, in bytes. Longer ones are reported as [`OTHER`].
const MAX_LEN: usize = 128;

const OTHER: &str = "other";

/// The detail of a request under a limit.
#[derive(Clone, Debug)]
pub(crate) struct RequestDetail {
    pub(crate) value: String,
    pub(crate) reported: Arc<ReportedDetails>,
}

/// The details of a limit that were reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedDetails(RwLock<HashSet<Box<str>>>);

impl RequestDetail {
    /// Returns the detail to report. It counts towards the maximum only if this is called.
    pub(crate) fn report(&self) -> &str {
        if self.reported.contains_or_adds(&self.value) { &self.value } else { OTHER }
    }
}

impl ReportedDetails {
    fn contains_or_adds(&self, detail: &str) -> bool {
        if detail.len() > MAX_LEN {
            return false;
        }
        {
            // A read lock, so that requests do not wait for each other, even if clients always send new values.
            let reported = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let is_known = reported.contains(detail);
            if is_known || reported.len() >= MAX_DETAILS {
                return is_known;
            }
        }
        let mut reported = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another request may have added the detail, or the last one that fits.
        reported.contains(detail) || reported.len() < MAX_DETAILS && reported.insert(detail.into())
    }
}
