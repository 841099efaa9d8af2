//! Overrides: other sizes of a limit for single keys, kept in the store.

use std::fmt;
use std::time::Duration;

use super::handle::LimitHandle;
use crate::algorithm::Algorithm;
use crate::decision::{Cell, Cells};
use crate::error::{ConfigError, StoreError};
use crate::key::{self, Key};
use crate::limit::Limit;
use crate::resilience::StoreClient;
use crate::store::{LONGEST_OVERRIDE, Override, OverrideStore, StoreFuture};

/// Other sizes of one limit for single keys: "customer 42 has 10,000 per day". They are set at runtime, kept in the
/// store, and shared by all processes that share the store.
///
/// Returned by [`RateLimitLayer::overrides`](crate::RateLimitLayer::overrides) and
/// [`Limiter::overrides`](crate::Limiter::overrides), for limits that are [overridable](crate::Limit::overridable).
///
/// ```
/// use std::time::Duration;
/// use axum::extract::{Path, State};
/// use axum::http::StatusCode;
/// use axum::{Router, routing::{get, put}};
/// use tower_ratelimit::{FixedWindow, Limit, OverrideError, Overrides, RateLimitLayer, key};
///
/// // PUT /customers/42/daily, with the number as the body. Restrict it to administrators.
/// async fn raise(State(daily): State<Overrides>, Path(customer): Path<String>, body: String) -> StatusCode {
///     let Ok(limit) = body.parse() else { return StatusCode::BAD_REQUEST };
///     let Ok(size) = FixedWindow::try_new(limit, Duration::from_secs(86_400)) else { return StatusCode::BAD_REQUEST };
///     match daily.set(&customer, size, None).await {
///         Ok(()) => StatusCode::NO_CONTENT,
///         Err(OverrideError::Invalid(_)) => StatusCode::BAD_REQUEST,
///         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
///     }
/// }
///
/// let limits = RateLimitLayer::new([
///     Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).overridable(),
/// ]);
/// let admin: Router = Router::new()
///     .route("/customers/{customer}/daily", put(raise))
///     .with_state(limits.overrides("daily").unwrap());
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits).merge(admin);
/// ```
///
/// # Effect
///
/// An override has the algorithm and the period of the limit, but other numbers of tokens. Usage carries over: with 80
/// of 100 used, an override of 200 leaves 120. The limit's overage is a percentage of the override; shadow mode stays
/// as it is. Clients see the size that applies.
///
/// For a practically unlimited key, set the largest size: `FixedWindow::per_day(u32::MAX)`. Sizes of 0 tokens are not
/// possible, because clients would still be given a time to retry. To block a key, use a [`KeyList`](crate::KeyList).
///
/// The `retry_after` of a denial by an override does not take its expiry into account. If the algorithm or the period
/// of a limit changes, it is another limit: overrides of the previous one stay in the store until they expire.
///
/// An override takes effect with the next decision of this process and, on a shared store, of all others. Only denials
/// that another process remembers stay in force for up to a second. Each decision uses one size, and a refund is of the
/// size that was charged. [`Limiter::reset`](crate::Limiter::reset) clears the usage of a key, but not its override.
///
/// While the store fails, limits that are [decided locally](crate::OnStoreError::DecideLocally) have their own size for
/// all keys. Overrides apply again once the store answers.
///
/// # Keys
///
/// A key is what the extractor finds in requests, as a [`Key`]:
///
/// | extractor | the key of its bucket |
/// |---|---|
/// | [`header("x-customer")`](key::header), [`cookie`](key::cookie), [`query`](key::query) | `"42"`, as text or bytes |
/// | [`matched_route()`](key::matched_route) | `"/users/{id}"`, as in the router |
/// | [`path()`](key::path) | `"/users/17"`, as the client spelled it |
/// | [`method()`](key::method) | `"GET"`, also for HEAD; `"_OTHER"` for non-standard methods |
/// | [`extension(\|user: &User\| user.id)`](key::extension), [`from_fn`](key::from_fn), [`from_async_fn`](key::from_async_fn) | the closure's result; a `u64` and a `u32` are different keys |
/// | [`peer_ip()`](key::peer_ip), [`client_ip(…)`](key::client_ip) | [`peer_ip().network(address)`](key::PeerIp::network): an IPv4 address, or the first address of its IPv6 network |
/// | a tuple | the tuple of their keys |
/// | [`one.or(other)`](key::KeyExtractor::or) | [`key::first(…)`](key::first) or [`key::second(…)`](key::second) |
/// | none, or a missing key with [`OnMissingKey::Share`](crate::OnMissingKey::Share) | [`key::Shared`] |
///
/// ```
/// use tower_ratelimit::key::KeyExtractor;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let client = (key::header("x-tenant"), key::header("x-api-key").or(key::peer_ip()));
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(client).overridable()]);
/// let daily = limits.overrides("daily").unwrap();
///
/// let size = FixedWindow::per_day(1_000);
/// daily.set(("shop", key::first("secret")), size, None).await.unwrap();
/// let address = "2001:db8::17".parse().unwrap();
/// daily.set(("shop", key::second(key::peer_ip().network(address))), size, None).await.unwrap();
/// # });
/// ```
///
/// With [`Limiter::acquire`](crate::Limiter::acquire), it is the key that you pass.
///
/// A key of another form is another key: its override is stored, but matches no request.
#[derive(Clone)]
pub struct Overrides {
    limit: LimitHandle,
}

impl Overrides {
    pub(crate) fn new(limit: LimitHandle) -> Result<Self, ConfigError> {
        let overrides = Self { limit };
        overrides.find(&overrides.limit.client())?;
        Ok(overrides)
    }

    /// Sets the size of the limit for `key`, in place of any previous override. The override expires after
    /// `expires_after`, rounded up to whole microseconds, or never if that is `None`.
    ///
    /// # Errors
    ///
    /// Returns [`OverrideError::Invalid`] if
    ///
    /// - the limit no longer exists, because live limits were replaced, or is not overridable,
    /// - `size` differs from the limit in more than its tokens: in algorithm, period, refill mode, buckets or rounding,
    /// - `size` and the limit's overage exceed 2^32 − 1 tokens, or
    /// - `expires_after` is 0 or longer than 36,525 days.
    ///
    /// Returns [`OverrideError::Store`] if the store fails, has its [maximum](crate::MemoryStore::max_overrides) of
    /// overrides, or does [not support](crate::StoreErrorKind::NotSupported) them. If the store did not answer, the
    /// override may have been set.
    pub async fn set(
        &self,
        key: impl Key,
        size: impl Into<Algorithm>,
        expires_after: Option<Duration>,
    ) -> Result<(), OverrideError> {
        let algorithm = size.into();
        let client = self.limit.client();
        let (_, limit) = self.find(&client).map_err(OverrideError::Invalid)?;
        limit.check_override(&algorithm).map_err(OverrideError::Invalid)?;
        if let Some(after) = expires_after.filter(|after| after.is_zero() || *after > LONGEST_OVERRIDE) {
            return Err(OverrideError::Invalid(ConfigError::new(format!(
                "an override expires after {after:?}: give it from 1 ns to 36,525 days, or `None` to keep it until it \
                 is removed"
            ))));
        }
        let value = Override::new(algorithm, expires_after);
        self.call_store(&key, |store, cell| store.set(cell, value)).await.map_err(OverrideError::Store)
    }

    /// Returns the override of `key`, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit no longer exists.
    pub fn get(&self, key: impl Key) -> StoreFuture<Option<Override>> {
        self.call_store(&key, |store, cell| store.get(cell))
    }

    /// Removes the override of `key`, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit no longer exists. If the store did not answer, the override
    /// may have been removed.
    pub fn remove(&self, key: impl Key) -> StoreFuture<()> {
        self.call_store(&key, |store, cell| store.remove(cell))
    }

    /// Returns the limit in force.
    fn find<'a>(&self, client: &'a StoreClient) -> Result<(usize, &'a Limit), ConfigError> {
        let (index, limit) = self.limit.find(client)?;
        if !limit.is_overridable() {
            return Err(ConfigError::new(format!(
                "the limit {:?} has no overrides: call `Limit::overridable` when you build it",
                self.limit.name()
            )));
        }
        Ok((index, limit))
    }

    fn call_store<T: Send + Unpin + 'static>(
        &self,
        key: &impl Key,
        call: impl FnOnce(&dyn OverrideStore, &Cell) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let client = self.limit.client();
        let key = key::hash(key, client.hasher());
        match self.find(&client) {
            Ok((limit, _)) => client.call([key].into_iter().collect(), |store| match store.overrides() {
                Some(overrides) => {
                    let mut cells = Cells::new();
                    client.limits().add(&mut cells, limit, key, 0);
                    call(overrides, &cells[0])
                }
                None => StoreFuture::ready(Err(StoreError::not_supported())),
            }),
            Err(error) => StoreFuture::ready(Err(StoreError::of_one_request(error))),
        }
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides").field("limit", &self.limit.name()).finish_non_exhaustive()
    }
}

/// The error of [`Overrides::set`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OverrideError {
    /// The limit can't have that size, or the expiry is out of range.
    Invalid(ConfigError),
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OverrideError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Invalid(_) => None,
            // The text of the store's error is part of this one's, so its cause comes next.
            Self::Store(error) => std::error::Error::source(error),
        }
    }
}
