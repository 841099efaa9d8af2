//! Concurrency limits: requests in flight, rather than requests in a time.
//!
//! A slot is a token of a sliding window whose period is its time to live. Its holder moves it to the present bucket
//! before it expires (see [`Store::renew`](crate::Store::renew)), and refunds it when the request has ended.

use std::time::Duration;

use super::settings::{Algorithm, Kind};
use crate::error::validation::{self, SECOND, checked};
use crate::error::{ConfigError, Fault};

/// The buckets of a time to live, so that a slot lives for at least seven eighths of it, and at most nine eighths.
const BUCKETS: u32 = 8;

/// At most `limit` requests in flight for each key. A request takes one **slot**, whatever its cost is, and returns it
/// when it has ended: see [`Limit::concurrent`](crate::Limit::concurrent).
///
/// - **Admits at most** `limit` requests at a time.
/// - **Keeps** 24 bytes per key in memory, and up to 135 in a database, however many requests and processes there are.
/// - **Choose it** for requests that last, such as streams, uploads and reports, beside a rate.
///
/// In memory, slots end with the process. In a database, each process renews the slots of its requests, and those of a
/// process that has died are free again after nine eighths of the [time to live](Self::time_to_live) at most.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Concurrency, Limit, key};
///
/// let streams = Concurrency::limit(4).time_to_live(Duration::from_secs(10));
/// let limit = Limit::new("streams", streams).by(key::header("x-api-key"));
/// # let _ = limit;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Concurrency(Algorithm);

impl Concurrency {
    /// Creates a limit of `limit` requests in flight.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error. [`try_limit`](Self::try_limit) returns an
    /// error instead.
    #[must_use]
    #[track_caller]
    pub const fn limit(limit: u32) -> Self {
        checked!(Self::of(limit))
    }

    /// Fallible version of [`limit`](Self::limit), for values that are read at runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is 0.
    pub fn try_limit(limit: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(limit)?)
    }

    /// Sets the time after which a database frees the slots of a process that has died, or can't reach it: between seven
    /// and nine eighths of this time. Defaults to 30 seconds. At least 1 second, at most 366 days, in whole
    /// milliseconds.
    ///
    /// Processes renew their slots four times in it, so a short one costs calls. It does not limit how long a request
    /// may take.
    ///
    /// # Panics
    ///
    /// Panics if `span` is out of its range. In a constant, this is a compile-time error.
    /// [`try_time_to_live`](Self::try_time_to_live) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn time_to_live(self, span: Duration) -> Self {
        checked!(self.living(span))
    }

    /// Fallible version of [`time_to_live`](Self::time_to_live).
    ///
    /// # Errors
    ///
    /// Returns an error if `span` is out of its range.
    pub fn try_time_to_live(self, span: Duration) -> Result<Self, ConfigError> {
        Ok(self.living(span)?)
    }

    const fn of(limit: u32) -> Result<Self, Fault> {
        match Algorithm::window_of(Kind::Log(Some(BUCKETS)), limit, Duration::from_secs(30)) {
            Ok(window) => Ok(Self(Algorithm { is_concurrency: true, ..window })),
            Err(fault) => Err(fault),
        }
    }

    const fn living(mut self, span: Duration) -> Result<Self, Fault> {
        match validation::span("time_to_live", span) {
            Ok(micros) if span.as_secs() >= SECOND.as_secs() && micros.is_multiple_of(1_000) => {
                self.0.span = micros;
                Ok(self)
            }
            Ok(_) => {
                Err(Fault::new("time_to_live is ").duration(span).text(": use whole milliseconds, at least 1 second"))
            }
            Err(fault) => Err(fault),
        }
    }
}

impl From<Concurrency> for Algorithm {
    fn from(concurrency: Concurrency) -> Self {
        concurrency.0
    }
}
