//! The report of a dry run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::explain::KeyParts;
use crate::key::KeyPart;
use crate::key::heads::RequestHead;
use crate::limit::Limit;
use crate::time::Timestamp;

/// The most samples that are kept of each kind.
pub(super) const MAX_SAMPLES: usize = 5;

/// The counts of a dry run. `Display` writes them for a terminal.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The number of requests.
    pub requests: u64,
    /// The number of allowed requests, including those without a limit.
    pub allowed: u64,
    /// The number of requests that a limit denied.
    pub denied: u64,
    /// The number of requests that were rejected because of a list or a missing key.
    pub rejected: u64,
    /// The number of requests to which no limit applied, or that a list exempts. They were allowed.
    pub unlimited: u64,
    /// The limits, in order. An `unlimited` block of a rules file is not a limit.
    pub limits: Vec<LimitReport>,
}

/// The counts of one limit.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitReport {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The path of its descriptor, if the limit comes from a rules file.
    pub rule: Option<Arc<str>>,
    /// The number of requests that the limit decided.
    pub requests: u64,
    /// The number of requests for which the limit had capacity. Another limit may have denied them.
    pub allowed: u64,
    /// The number of requests that the limit denied.
    pub denied: u64,
    /// The number of requests for which the limit had no capacity, but was not enforced: in shadow mode, or because
    /// another limit in quota mode had capacity.
    pub shadow_denied: u64,
    /// The number of requests that were rejected because they had no key for the limit.
    pub missing_key: u64,
    /// The first requests that the limit denied, or would deny if it were enforced: at most five.
    pub samples: Vec<SampleRequest>,
}

/// A recorded request, as an example in a report.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SampleRequest {
    /// The time of its arrival.
    pub at: Timestamp,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The wait of the limit in a [`LimitReport`], or of the whole decision in [`Changes`](super::Changes). `None` if
    /// no wait can help, or if the request was allowed.
    pub retry_after: Option<Duration>,
    /// The limit of the [`LimitReport`], or the limits that deny or reject the request, in [`Changes`](super::Changes).
    pub limits: Vec<SampleLimit>,
}

/// A limit of a [`SampleRequest`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SampleLimit {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The parts of the request's key. Credentials are hidden behind fingerprints.
    pub key: Vec<KeyPart>,
}

impl Report {
    pub(super) fn new(limits: &[Limit]) -> Self {
        let limit = |limit: &Limit| LimitReport::new(limit.shared_name(), limit.shared_rule_path());
        Self { limits: limits.iter().map(limit).collect(), ..Self::default() }
    }
}

impl LimitReport {
    pub(super) fn new(name: &Arc<str>, rule: Option<&Arc<str>>) -> Self {
        Self {
            name: name.clone(),
            rule: rule.cloned(),
            requests: 0,
            allowed: 0,
            denied: 0,
            shadow_denied: 0,
            missing_key: 0,
            samples: Vec::new(),
        }
    }
}

impl SampleRequest {
    pub(super) fn new(
        at: Timestamp,
        head: &RequestHead<'_>,
        retry_after: Option<Duration>,
        limits: Vec<SampleLimit>,
    ) -> Self {
        Self { at, method: head.method.to_string(), path: head.path().to_owned(), retry_after, limits }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, allowed, denied, rejected, unlimited, limits } = self;
        write!(f, "{denied} of {requests} requests denied, {rejected} rejected, {allowed} allowed")?;
        write!(f, ", of which {unlimited} without a limit")?;
        limits.iter().try_for_each(|limit| write!(f, "\n  {limit}"))
    }
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(rule) = &self.rule {
            write!(f, " ({rule})")?;
        }
        write!(f, ": {} of {} requests denied", self.denied, self.requests)?;
        if self.shadow_denied > 0 {
            write!(f, ", {} would be denied if it were enforced", self.shadow_denied)?;
        }
        if self.missing_key > 0 {
            write!(f, ", {} rejected without a key", self.missing_key)?;
        }
        self.samples.iter().try_for_each(|sample| write!(f, "\n    {sample}"))
    }
}

impl fmt::Display for SampleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.as_micros();
        write!(f, "{}.{:06} {} {}", micros / 1_000_000, micros % 1_000_000, self.method, self.path)?;
        if let Some(wait) = self.retry_after {
            write!(f, ", retry after {wait:?}")?;
        }
        self.limits.iter().try_for_each(|limit| write!(f, "; {limit}"))
    }
}

impl fmt::Display for SampleLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, KeyParts(&self.key))
    }
}

/// Instants and durations are seconds.
#[cfg(feature = "serde")]
impl serde::Serialize for SampleRequest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut sample = serializer.serialize_struct("SampleRequest", 5)?;
        sample.serialize_field("at_seconds", &(self.at.as_micros() as f64 / 1e6))?;
        sample.serialize_field("method", &self.method)?;
        sample.serialize_field("path", &self.path)?;
        sample.serialize_field("retry_after_seconds", &self.retry_after.map(|wait| wait.as_secs_f64()))?;
        sample.serialize_field("limits", &self.limits)?;
        sample.end()
    }
}
