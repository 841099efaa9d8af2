//! The rows of a database: their names, their lifetimes, and how requests read and write them.
//!
//! A row holds the state of a key, or an override in the form of a compact state.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::operation::{KeyLocks, Retries, TIMEOUT};
use crate::algorithm::{CompactState, DecodeError, KeyState};
use crate::decision::{Charge, Charges, Outcome};
use crate::error::StoreError;
use crate::key::hash::KeyHash;
use crate::store::{
    Answer, DEFAULT_PREFIX, LONGEST_OVERRIDE, Override, OverrideOperation, SharedHasher, StoredOverride,
    random_identity,
};
use crate::time::{Clock, SystemClock, Timestamp};

/// A database, and what the requests of this process share. Clones are of the same one.
#[derive(Clone, Debug)]
pub(super) struct Database<B> {
    pub(super) backend: B,
    /// The locks by which requests take turns: otherwise, their writes would conflict with each other.
    pub(super) locks: Arc<KeyLocks<KeyHash>>,
    pub(super) hasher: SharedHasher,
    pub(super) identity: u32,
    pub(super) prefix: Arc<str>,
    /// The time for which a value is kept after it has ceased to count.
    pub(super) ttl_margin: Duration,
    /// Replaces the clock of the database.
    pub(super) clock: Option<Arc<dyn Clock>>,
    /// Whether a request had to wait for the clock, so that it is not read to repeat denials.
    pub(super) has_remote_clock: Arc<AtomicBool>,
    /// Set before each write of the requests that share it: those that have begun to write are completed.
    pub(super) writes: Arc<AtomicBool>,
}

/// The longest time to retry setting an override, with which only others of the same key compete.
const OVERRIDE_RETRIES: Duration = Duration::from_millis(20);

/// The state of a key, as it was read.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: String,
    /// `None` if the key has no value.
    version: Option<u64>,
    pub(super) state: KeyState,
}

impl<B: CompareAndSwap> Database<Arc<B>> {
    pub(super) fn new(backend: Arc<B>) -> Self {
        Self {
            backend,
            locks: Arc::default(),
            hasher: SharedHasher::public(),
            identity: random_identity(),
            prefix: DEFAULT_PREFIX.into(),
            ttl_margin: Duration::from_secs(2),
            clock: None,
            has_remote_clock: Arc::default(),
            writes: Arc::default(),
        }
    }

    /// Returns the current time.
    pub(super) async fn current_time(&self) -> Result<Timestamp, StoreError> {
        match &self.clock {
            Some(clock) => Ok(clock.now()),
            None => self.backend.now().await,
        }
    }

    /// Returns the names of the values that hold the states of a request.
    pub(super) fn keys(&self, charges: &Charges) -> Vec<String> {
        charges.fingerprints().map(|fingerprint| self.key(fingerprint)).collect()
    }

    fn key(&self, fingerprint: u128) -> String {
        format!("{}:{fingerprint:032x}", self.prefix)
    }

    /// Returns the name of the value that holds the override of a charge.
    fn override_key(&self, charge: &Charge) -> String {
        self.key(charge.fingerprint()) + ":override"
    }

    /// Reads the rows and the overrides of a request at once, and gives the charges the sizes that apply at `now`. Also
    /// returns the instant (in µs) at which the first of the overrides expires.
    pub(super) async fn read(&self, charges: &mut Charges, now: u64) -> Result<(Vec<Row>, u64), StoreError> {
        let overridable =
            charges.iter().filter(|outcome| outcome.is_overridable()).map(|outcome| self.override_key(outcome));
        let mut keys = self.keys(charges);
        keys.extend(overridable);
        let found = self.backend.get_all(&keys).await?;
        if found.len() != keys.len() {
            let (keys, values) = (keys.len(), found.len());
            let message = format!("`get_all` returned {values} values for {keys} keys: return one for each key");
            return Err(StoreError::new(message));
        }
        let mut found = keys.into_iter().zip(found);
        let are_logs =
            charges.states().map(|(position, is_penalty)| !is_penalty && charges[position].algorithm().keeps_log());
        let rows = are_logs.zip(found.by_ref()).map(|(is_log, (key, found))| Row::decode(key, found, is_log));
        let rows = rows.collect::<Result<_, _>>()?;
        let mut until = u64::MAX;
        for (outcome, (key, found)) in charges.iter_mut().filter(|outcome| outcome.is_overridable()).zip(found) {
            if let Some(valid) = valid_override(&key, found.as_ref(), now)? {
                outcome.charge.resize(valid.size);
                until = until.min(valid.expires_at);
            }
        }
        Ok((rows, until))
    }

    /// Gets, sets or removes the override of a charge.
    pub(super) async fn access_override(
        &self,
        charge: &Charge,
        operation: OverrideOperation,
    ) -> Result<Option<Override>, StoreError> {
        let key = self.override_key(charge);
        match operation {
            OverrideOperation::Get => {
                let found = self.backend.get(&key).await?;
                let now = self.current_time().await?.as_micros();
                Ok(valid_override(&key, found.as_ref(), now)?.and_then(|valid| valid.of(charge, now)))
            }
            OverrideOperation::Set(size) => {
                let mut retries = Retries::new(OVERRIDE_RETRIES)?;
                let at = self.current_time().await?;
                let stored = StoredOverride::new(size, at.as_micros());
                let value = KeyState::Compact(stored.to_state()).to_bytes();
                loop {
                    retries.next_attempt().await?;
                    let version = self.backend.get(&key).await?.map(|found| found.version);
                    if self.swap(&key, version, &value, stored.expires_at, at).await? {
                        return Ok(None);
                    }
                }
            }
            OverrideOperation::Remove => self.backend.delete(&key).await.map(|()| None),
        }
    }

    /// Refunds charges, as far as they still count. Tries all of them, and returns the first error.
    pub(super) async fn refund(&self, charged: &[Outcome]) -> Result<(), StoreError> {
        let mut result = Ok(());
        for outcome in charged {
            result = result.and(self.refund_one(outcome).await);
        }
        result
    }

    async fn refund_one(&self, outcome: &Outcome) -> Result<(), StoreError> {
        self.change(outcome, |found, now| refunded(found, outcome, now)).await.map(drop)
    }

    /// Renews slots. Tries all of them, and returns an error if none was renewed.
    pub(super) async fn renew(&self, charges: &Charges) -> Result<Answer, StoreError> {
        let mut renewed = Vec::new();
        for outcome in charges.iter() {
            let change = self.change(outcome, |found, now| {
                let mut state = refunded(found, outcome, now);
                state.charge(outcome.algorithm(), now, outcome.cost(), CompactState::UNUSED);
                state
            });
            let marked = |(at, state): (Timestamp, KeyState)| (at, state.summary(outcome.algorithm(), at.as_micros()));
            renewed.push(change.await.map(marked));
        }
        Answer::of_renewals(charges, renewed)
    }

    /// Replaces the state of a charge by what `change` returns. Returns the instant and the state.
    async fn change(
        &self,
        charge: &Charge,
        change: impl Fn(&KeyState, u64) -> KeyState,
    ) -> Result<(Timestamp, KeyState), StoreError> {
        let mut retries = Retries::new(TIMEOUT)?;
        loop {
            retries.next_attempt().await?;
            let at = self.current_time().await?;
            let key = self.key(charge.fingerprint());
            let found = self.backend.get(&key).await?;
            let row = Row::decode(key, found, charge.algorithm().keeps_log())?;
            let state = change(&row.state, at.as_micros());
            if state == row.state || self.write(&row, &state, at).await? {
                return Ok((at, state));
            }
        }
    }

    /// Writes the new state of a row, unless another process has changed it. Returns whether it was written.
    pub(super) async fn write(&self, row: &Row, state: &KeyState, at: Timestamp) -> Result<bool, StoreError> {
        let expires_at = state.expires_at();
        self.swap(&row.key, row.version, &state.to_bytes(), expires_at, at).await
    }

    /// Sets a value that counts until an instant (in µs), unless its version is another. Returns whether it was set.
    async fn swap(
        &self,
        key: &str,
        version: Option<u64>,
        value: &[u8],
        expires_at: u64,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let counts_for = Duration::from_micros(expires_at.saturating_sub(at.as_micros()));
        self.backend.compare_and_swap(key, version, value, counts_for.min(LONGEST_OVERRIDE) + self.ttl_margin).await
    }
}

impl Row {
    fn decode(key: String, found: Option<Versioned>, is_log: bool) -> Result<Self, StoreError> {
        let state = decode(&key, found.as_ref(), is_log)?.unwrap_or_else(|| KeyState::unused(is_log));
        Ok(Self { key, version: found.map(|found| found.version), state })
    }
}

/// Returns the state after the refund of a charge.
pub(super) fn refunded(state: &KeyState, outcome: &Outcome, now: u64) -> KeyState {
    let mut state = state.clone();
    state.refund(outcome.algorithm(), outcome.mark, now, outcome.cost());
    state
}

/// Decodes an override, if there is one that is valid at `now` (in µs).
fn valid_override(key: &str, found: Option<&Versioned>, now: u64) -> Result<Option<StoredOverride>, StoreError> {
    let Some(KeyState::Compact(state)) = decode(key, found, false)? else { return Ok(None) };
    Ok(Some(StoredOverride::of_state(state)).filter(|stored| stored.is_valid_at(now)))
}

/// Decodes the value of a key, if it has one. An invalid value is an error of the request.
fn decode(key: &str, found: Option<&Versioned>, is_log: bool) -> Result<Option<KeyState>, StoreError> {
    found.map(|found| KeyState::from_bytes(&found.value, is_log)).transpose().map_err(|error| {
        StoreError::of_one_request(match error {
            DecodeError::Version(version) => format!(
                "the value of `{key}` has version {version}, which this release cannot read: use another prefix while \
                 releases differ"
            ),
            DecodeError::Malformed => {
                format!("the value of `{key}` is malformed: check that no other program writes keys of this prefix")
            }
        })
    })
}

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

    /// Returns the current time, by the clock of the database if it has one. Defaults to the wall clock of this machine:
    /// then the clocks of all processes that share the database must agree, because a limit counts by the latest time at
    /// which its key was charged. It must not go back; a resolution of milliseconds suffices. The default stands still
    /// while the wall clock is behind the latest time that this process has read.
    ///
    /// # Errors
    ///
    /// Returns an error if the database failed.
    fn now(&self) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        static LATEST: AtomicU64 = AtomicU64::new(0);
        let now = SystemClock::new().now().as_micros();
        ready(Ok(Timestamp::from_micros(LATEST.fetch_max(now, Ordering::Relaxed).max(now))))
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
