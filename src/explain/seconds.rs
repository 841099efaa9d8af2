//! Serializes durations and instants as numbers of seconds.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::time::Timestamp;

/// Serializes a duration.
pub(super) fn span<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    span.as_secs_f64().serialize(serializer)
}

/// Serializes a duration, if there is one.
pub(super) fn optional_span<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

/// Serializes an instant as the time since the Unix epoch, if there is one.
pub(super) fn optional_instant<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.as_micros() as f64 / 1e6).serialize(serializer)
}
