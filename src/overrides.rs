//! Other sizes of a limit for single keys, kept in the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::error::{ConfigError, ConfigErrorKind, StoreError};
use crate::hash::KeyHash;
use crate::key::{self, Key};
use crate::limit::Limit;
use crate::resilience::StoreClient;
use crate::store::{LONGEST_OVERRIDE, LimitSpec, Override, Store, StoreFuture};

/// Other sizes of one limit for single keys: "customer 42 has 10,000 a day". They are set at run time, kept in the
/// store, and shared by all who share it.
///
/// By [`RateLimitLayer::overrides`](crate::RateLimitLayer::overrides) or
/// [`Limiter::overrides`](crate::Limiter::overrides), of a limit that is
/// [overridable](crate::Limit::overridable). Its clones are the same.
///
/// ```
/// use std::time::Duration;
/// use axum::extract::{Path, State};
/// use axum::http::StatusCode;
/// use axum::{Router, routing::{get, put}};
/// use tower_ratelimit::{FixedWindow, Limit, OverrideError, Overrides, RateLimitLayer, key};
///
/// // PUT /customers/42/daily, with the number as the body. Mind who may.
/// async fn raise(State(daily): State<Overrides>, Path(customer): Path<String>, body: String) -> StatusCode {
///     let Ok(limit) = body.parse() else { return StatusCode::BAD_REQUEST };
///     let Ok(size) = FixedWindow::try_new(limit, Duration::from_secs(86_400)) else { return StatusCode::BAD_REQUEST };
///     match daily.set(&customer, size, None).await {
///         Ok(()) => StatusCode::NO_CONTENT,
///         Err(OverrideError::Refused(_)) => StatusCode::BAD_REQUEST,
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
/// # What it changes
///
/// An override is the limit with other numbers of tokens, and of the same algorithm and period: what was used
/// counts on. With 80 of 100 used, an override of 200 leaves 120. A limit's overage is a part of its override, as
/// of the limit itself; whether it is in the shadow stays as it is. Clients are told the size that applies.
///
/// To let a key do as it likes, give it as much as there can be: `FixedWindow::per_day(u32::MAX)`. None is of 0
/// tokens: to shut a client out is not a limiter's to decide by a size, as it would still be told when to come back.
///
/// Whoever is denied by an override that expires is told to wait as if it did not. Where a limit's algorithm or
/// period changes, it is another limit: overrides of the one before stay in the store until they expire.
///
/// It counts for the next decision in this process, and on a `RedisStore` in any other. Only
/// denials that another process remembers are told for up to a second
/// more. Each decision goes by one size. What was charged by another one is given back by that.
/// [`Limiter::reset`](crate::Limiter::reset) forgets what a key has used, and leaves its override.
///
/// While the store fails, limits that are [decided locally](crate::OnStoreError::DecideLocally) go by the override
/// that this process has last seen of a key, if it has not expired since and is among the 16,384 that are
/// remembered; or else by the limit itself.
///
/// # Whose
///
/// A key is named by what its extractor takes from requests, as a [`Key`]:
///
/// | extractor | the key of its bucket |
/// |---|---|
/// | [`header("x-customer")`](key::header) | `"42"`, as text or bytes |
/// | [`matched_route()`](key::matched_route) | `"/users/{id}"`, as the route is written |
/// | [`path()`](key::path) | `"/users/17"`, as the client spells it |
/// | [`method()`](key::method) | `"GET"`, of HEAD too; `"_OTHER"`, of all that are not standard |
/// | [`extension(\|user: &User\| user.id)`](key::extension), [`from_fn`](key::from_fn), [`from_async_fn`](key::from_async_fn) | what the closure returns; a `u64` is another key than a `u32` |
/// | [`peer_ip()`](key::peer_ip), [`client_ip(…)`](key::client_ip) | [`peer_ip().network(address)`](key::PeerIp::network): an IPv4 address, or the first of its IPv6 network |
/// | a tuple of them | the tuple of their keys |
/// | [`one.or(other)`](key::KeyExtractor::or) | [`key::first(…)`](key::first) or [`key::second(…)`](key::second) |
/// | none, or a missing one that [shares](crate::OnMissingKey::Share) a bucket | [`key::Shared`] |
///
/// ```
/// use tower_ratelimit::key::KeyExtractor;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let who = (key::header("x-tenant"), key::header("x-api-key").or(key::peer_ip()));
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(who).overridable()]);
/// let daily = limits.overrides("daily").unwrap();
///
/// let size = FixedWindow::per_day(1_000);
/// daily.set(("shop", key::first("secret")), size, None).await.unwrap();
/// let address = "2001:db8::17".parse().unwrap();
/// daily.set(("shop", key::second(key::peer_ip().network(address))), size, None).await.unwrap();
/// # });
/// ```
///
/// [`Limiter::acquire`](crate::Limiter::acquire) is handed the key itself.
///
/// A key of another form is another key: its override is kept, and no request ever meets it.
#[derive(Clone)]
pub struct Overrides {
    /// What is gone by at present: rules may be replaced.
    present: Arc<dyn Fn() -> Arc<StoreClient> + Send + Sync>,
    limit: Arc<str>,
}

impl Overrides {
    pub(crate) fn of(
        present: impl Fn() -> Arc<StoreClient> + Send + Sync + 'static,
        limit: &str,
    ) -> Result<Self, ConfigError> {
        let overrides = Self { present: Arc::new(present), limit: limit.into() };
        overrides.find(&(overrides.present)())?;
        Ok(overrides)
    }

    /// Gives `key` another size of the limit, in place of any that it has, from now on and for `expires_after`, of
    /// which a started microsecond counts whole; or for good, if that is `None`.
    ///
    /// # Errors
    ///
    /// When the limit is not there any more, as its rules were replaced, or not overridable; when `size` is of another
    /// algorithm or period than the limit (or fills in another way, or has other buckets
    /// or another rounding), or with the limit's overage is over 2^32 − 1 tokens; when `expires_after` is 0 or
    /// longer than 36,525 days; when the store can't, has [as many as it may](crate::MemoryStore::max_overrides),
    /// or [keeps none](crate::StoreErrorKind::NotSupported). A store that does not answer may have done it.
    pub async fn set(
        &self,
        key: impl Key,
        size: impl Into<Algorithm>,
        expires_after: Option<Duration>,
    ) -> Result<(), OverrideError> {
        let algorithm = size.into();
        let client = (self.present)();
        let (limit, _) = self.find(&client).map_err(OverrideError::Refused)?;
        limit.can_be(&algorithm).map_err(OverrideError::Refused)?;
        if let Some(after) = expires_after.filter(|after| after.is_zero() || *after > LONGEST_OVERRIDE) {
            return Err(OverrideError::Refused(ConfigErrorKind::OverrideExpiry { after }.into()));
        }
        let answer = self.ask(&key, |store, spec, key| store.set_override(spec, key, &algorithm, expires_after));
        drop(key);
        answer.await.map_err(OverrideError::Store)
    }

    /// The other size that `key` has of the limit, if it has one.
    ///
    /// # Errors
    ///
    /// When the store can't say, or the limit is not there any more.
    pub fn get(&self, key: impl Key) -> StoreFuture<Option<Override>> {
        self.ask(&key, |store, spec, key| store.get_override(spec, key))
    }

    /// Gives `key` the limit's own size again.
    ///
    /// # Errors
    ///
    /// When the store can't, or the limit is not there any more. A store that does not answer may have done it.
    pub fn remove(&self, key: impl Key) -> StoreFuture<()> {
        self.ask(&key, |store, spec, key| store.remove_override(spec, key))
    }

    /// The limit, as it is at present.
    fn find<'a>(&self, client: &'a StoreClient) -> Result<(&'a Limit, &'a Arc<LimitSpec>), ConfigError> {
        let name = || self.limit.to_string();
        let limit = client.limits().iter().find(|(limit, _)| limit.name() == &*self.limit);
        let (limit, spec) = limit.ok_or_else(|| ConfigErrorKind::NoSuchLimit { name: name() })?;
        if !limit.is_overridable() {
            return Err(ConfigErrorKind::NotOverridable { limit: name() }.into());
        }
        Ok((limit, spec))
    }

    fn ask<T: Send + Unpin + 'static>(
        &self,
        key: &impl Key,
        ask: impl FnOnce(&dyn Store, &Arc<LimitSpec>, KeyHash) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let client = (self.present)();
        let key = key::hash(key, client.hasher());
        match self.find(&client) {
            Ok((_, spec)) => client.call([key].into_iter().collect(), |store| ask(store, spec, key)),
            Err(gone) => StoreFuture::ready(Err(StoreError::of_one_request(gone))),
        }
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Why an override was not set.
#[derive(Debug)]
#[non_exhaustive]
pub enum OverrideError {
    /// The limit can't have that size, or an override can't expire then.
    Refused(ConfigError),
    /// The store can't.
    Store(StoreError),
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OverrideError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Store(error) => std::error::Error::source(error),
        }
    }
}
