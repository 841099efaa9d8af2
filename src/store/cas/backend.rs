//! The operations that a database must support.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::time::{Clock, SystemClock, Timestamp};

/// A database that replaces a value only if it has not changed since it was read.
///
/// This is all that a [`CasStore`](super::CasStore) needs. It covers databases without server-side scripts: Memcached
/// (`gets` and `cas`), DynamoDB (conditional writes), etcd (transactions on a revision), or a table of a SQL database
/// with a version column.
///
/// Values are opaque: store the bytes as they are. Keys are ASCII text of letters, digits and `:-._/%` that never
/// contains text of a client, only a fingerprint of it.
///
/// # Errors and retries
///
/// Do not retry a write whose outcome is unknown, such as one whose response was lost: it could charge a request twice.
/// Return the error. A [`StoreError::new`] is a failure of the database, which counts for the
/// [circuit breaker](crate::CircuitBreaker).
///
/// # Expiry
///
/// A value that has expired counts as none, even while the database still holds it. If the database does not remove
/// expired values, remove them regularly: every minute, for instance, with
/// `DELETE FROM limits WHERE expires_at <= now()`. That is safe at any time, because no version is used twice.
///
/// # Examples
///
/// [The guide](crate::guide::stores#compare-and-swap) shows a whole implementation with its test, which needs
/// `features = ["conformance"]`. A store with it:
///
/// ```
/// use tower_ratelimit::store::{CasStore, CompareAndSwap};
/// use tower_ratelimit::{FixedWindow, Limit, Limiter};
///
/// fn mails(database: impl CompareAndSwap) -> Limiter {
///     let daily = Limit::new("daily", FixedWindow::per_day(20));
///     Limiter::builder([daily]).store(CasStore::new(database)).build()
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a database with compare-and-swap",
    note = "implement `CompareAndSwap` for it, or implement `Store` if the database can decide by itself"
)]
pub trait CompareAndSwap: fmt::Debug + Send + Sync + 'static {
    /// Returns the value of `key` with its own version, or `None` if there is none or it has expired.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Versioned>, StoreError>> + Send;

    /// Returns the values of several keys, in their order. Defaults to one [`get`](Self::get) after the other: override
    /// it if the database reads several keys in one round trip.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed.
    fn get_all(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Versioned>>, StoreError>> + Send {
        async move {
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                values.push(self.get(key).await?);
            }
            Ok(values)
        }
    }

    /// Sets the value of `key` if its version is still `expected`, or if `expected` is `None` and the key has no value
    /// or one that has expired. Returns whether it was set. The comparison and the write are one atomic operation.
    ///
    /// The value must be kept for `ttl`. Round `ttl` up to what the database supports, and limit it to what the
    /// database can represent: it is up to 100 years.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed, or if it is unknown whether the value was set.
    fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes the value of `key`, if there is one. A value that is set later must not have a
    /// [version](Versioned::version) that was used before.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed.
    fn delete(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the current time, by the clock of the database if it has one. Defaults to the [`SystemClock`] of this
    /// process: then the clocks of all processes that share the database must agree, because a limit counts by the
    /// latest time at which its key was charged. It must not go back; a resolution of milliseconds suffices.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed.
    fn now(&self) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Ok(SystemClock::new().now()))
    }
}

impl<B: CompareAndSwap> CompareAndSwap for Arc<B> {
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Versioned>, StoreError>> + Send {
        (**self).get(key)
    }

    fn get_all(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Versioned>>, StoreError>> + Send {
        (**self).get_all(keys)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        (**self).compare_and_swap(key, expected, value, ttl)
    }

    fn delete(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).delete(key)
    }

    fn now(&self) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        (**self).now()
    }
}

/// A value and its version, which changes whenever the value is set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Versioned {
    /// The bytes as they were set.
    pub value: Vec<u8>,
    /// The version. A value that is set again after its removal must have another version.
    pub version: u64,
}
