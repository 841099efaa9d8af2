//! The comparison of two sets of limits on the same requests.

use std::fmt;

use super::report::{MAX_SAMPLES, SampleLimit, SampleRequest};
use super::run::DryRun;
use crate::explain::Explanation;
use crate::key::heads::RequestHead;
use crate::time::Timestamp;

/// Compares the decisions of two sets of limits about the same requests. See the [module](crate::dry_run).
///
/// `Display` writes the changes for a terminal.
#[derive(Debug)]
pub struct Comparison {
    before: DryRun,
    after: DryRun,
    newly_denied: Changes,
    newly_allowed: Changes,
}

/// A difference between the decisions of the old and the new limits about a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// The old limits allow the request. The new ones deny or reject it.
    NewlyDenied,
    /// The old limits deny or reject the request. The new ones allow it.
    NewlyAllowed,
}

/// The requests with the same [`Change`].
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Changes {
    /// The number of requests.
    pub count: u64,
    /// The first requests, at most five. `retry_after` is that of the limits that deny the request.
    pub samples: Vec<SampleRequest>,
}

impl Comparison {
    /// Creates a comparison of limits that have decided no request yet.
    #[must_use]
    pub fn new(before: DryRun, after: DryRun) -> Self {
        Self { before, after, newly_denied: Changes::default(), newly_allowed: Changes::default() }
    }

    /// Decides a request by both sets of limits. Returns the change, if their decisions differ. See [`DryRun::request`].
    pub async fn request(&mut self, at: Timestamp, head: &RequestHead<'_>) -> Option<Change> {
        let before = self.before.request(at, head).await;
        let after = self.after.request(at, head).await;
        match (before.is_allowed(), after.is_allowed()) {
            (true, false) => {
                self.newly_denied.add(at, head, &after);
                Some(Change::NewlyDenied)
            }
            (false, true) => {
                self.newly_allowed.add(at, head, &before);
                Some(Change::NewlyAllowed)
            }
            (true, true) | (false, false) => None,
        }
    }

    /// Returns the dry run of the old limits.
    #[must_use]
    pub fn before(&self) -> &DryRun {
        &self.before
    }

    /// Returns the dry run of the new limits.
    #[must_use]
    pub fn after(&self) -> &DryRun {
        &self.after
    }

    /// Returns the requests that only the new limits deny or reject.
    #[must_use]
    pub fn newly_denied(&self) -> &Changes {
        &self.newly_denied
    }

    /// Returns the requests that only the old limits deny or reject.
    #[must_use]
    pub fn newly_allowed(&self) -> &Changes {
        &self.newly_allowed
    }
}

impl Changes {
    fn add(&mut self, at: Timestamp, head: &RequestHead<'_>, denial: &Explanation) {
        self.count += 1;
        if self.samples.len() < MAX_SAMPLES {
            let limits = denial.limits.iter().filter(|limit| limit.denies()).map(SampleLimit::from).collect();
            self.samples.push(SampleRequest::new(at, head, denial.retry_after(), limits));
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "before: {}", self.before.report())?;
        writeln!(f, "after: {}", self.after.report())?;
        writeln!(f, "newly denied: {}", self.newly_denied)?;
        write!(f, "newly allowed: {}", self.newly_allowed)
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count.fmt(f)?;
        self.samples.iter().try_for_each(|sample| write!(f, "\n  {sample}"))
    }
}
