//! Serializes durations and instants as numbers of seconds.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::time::Timestamp;

/// Serializes a duration or an `Option<Duration>`.
pub(super) fn span<S: Serializer>(
    span: &(impl Into<Option<Duration>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (*span).into().map(|span| span.as_secs_f64()).serialize(serializer)
}

/// Serializes an instant as the time since the Unix epoch, if there is one.
pub(super) fn instant<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.as_micros() as f64 / 1e6).serialize(serializer)
}
