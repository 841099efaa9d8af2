//! The handle of one limit: its state and its overrides for single keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Charges, Decision};
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::error::{ConfigError, StoreError};
use crate::key::cidrs::address_of;
use crate::key::{Key, KeyBuf};
use crate::limit::Limit;
use crate::store::{LONGEST_OVERRIDE, Override, OverrideOperation, Purpose, StoreFuture};
use crate::text::exact;

/// Inspects and resets single keys of one limit, and gives them other sizes: "customer 42 has 10,000 per day".
///
/// Returned by [`RateLimitLayer::limit`](crate::RateLimitLayer::limit) and [`Limiter::limit`](crate::Limiter::limit).
/// Clones refer to the same limit.
///
/// ```
/// use std::time::Duration;
/// use axum::extract::{Path, State};
/// use axum::http::StatusCode;
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{FixedWindow, Limit, LimitHandle, RateLimitLayer, StoreErrorKind, key};
///
/// // GET /customers/42/daily
/// async fn quota(State(daily): State<LimitHandle>, Path(customer): Path<String>) -> Result<String, StatusCode> {
///     let decision = daily.peek(&customer, 1).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
///     let left = decision.outcomes().first().map_or(0, |outcome| outcome.remaining());
///     Ok(format!("{left} left"))
/// }
///
/// // DELETE /customers/42/daily
/// async fn reset(State(daily): State<LimitHandle>, Path(customer): Path<String>) -> StatusCode {
///     match daily.reset(&customer).await {
///         Ok(()) => StatusCode::NO_CONTENT,
///         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
///     }
/// }
///
/// // PUT /customers/42/daily, with the number as the body. Restrict it to administrators.
/// async fn raise(State(daily): State<LimitHandle>, Path(customer): Path<String>, body: String) -> StatusCode {
///     let Ok(limit) = body.parse() else { return StatusCode::BAD_REQUEST };
///     let Ok(size) = FixedWindow::try_new(limit, Duration::from_secs(86_400)) else { return StatusCode::BAD_REQUEST };
///     match daily.set_override(&customer, size, None).await {
///         Ok(()) => StatusCode::NO_CONTENT,
///         Err(error) if error.kind() == StoreErrorKind::InvalidCall => StatusCode::BAD_REQUEST,
///         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
///     }
/// }
///
/// let limits = RateLimitLayer::new([
///     Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).overridable(),
/// ]);
/// let admin: Router = Router::new()
///     .route("/customers/{customer}/daily", get(quota).delete(reset).put(raise))
///     .with_state(limits.limit("daily").unwrap());
/// // Requests for unknown paths are not limited, because they use the fallback of `admin`.
/// let app: Router = Router::new().route("/", get("hello")).layer(limits).merge(admin);
/// ```
///
/// # Overrides
///
/// Limits that are [overridable](crate::Limit::overridable) can have other sizes for single keys. Overrides are kept in
/// the store, and shared by all processes that share it.
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
/// | [`header("x-customer")`](crate::key::header), [`cookie`](crate::key::cookie), [`query`](crate::key::query) | `"42"`, as text or bytes |
/// | a header with [several spellings](crate::key#spellings) | any of them. In a tuple or an `or`, in lower case, `"application/json"`, without whitespace, quotes and the parameters of a content type |
/// | [`bearer()`](crate::key::bearer) | `"mF_9.B5f-4.1JqM"`, without the scheme |
/// | [`host()`](crate::key::host) | `"example.org"`, `"[2001:db8::1]"`. In a tuple or an `or`, in lower case and without a port |
/// | [`matched_route()`](crate::key::matched_route) | `"/users/{id}"`, as in the router |
/// | [`path()`](crate::key::path) | `"/users/17"`, as the client spelled it |
/// | [`method()`](crate::key::method) | `"GET"`, also for HEAD; `"_OTHER"` for non-standard methods |
/// | [`extension(\|user: &User\| user.id)`](crate::key::extension), [`from_fn`](crate::key::from_fn), [`from_async_fn`](crate::key::from_async_fn) | the closure's result; a number in any integer type |
/// | [`peer_ip()`](crate::key::peer_ip), [`TrustedProxies`](crate::key::TrustedProxies) | an address of the network, or its text. In a tuple, an `or`, or a limit of a rules file: [`peer_ip().network(address)`](crate::key::ClientIp::network) |
/// | a tuple | the tuple of their keys |
/// | [`one.or(other)`](crate::key::KeyExtractor::or) | [`key::first(…)`](crate::key::first) or [`key::second(…)`](crate::key::second) |
/// | none, or a missing key with [`OnMissingKey::Share`](crate::OnMissingKey::Share) | [`key::Shared`](crate::key::Shared) |
///
/// ```
/// use tower_ratelimit::key::KeyExtractor;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let client = (key::header("x-tenant"), key::header("x-api-key").or(key::peer_ip()));
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(client).overridable()]);
/// let daily = limits.limit("daily").unwrap();
///
/// let size = FixedWindow::per_day(1_000);
/// daily.set_override(("shop", key::first("secret")), size, None).await.unwrap();
/// let address = "2001:db8::17".parse().unwrap();
/// daily.set_override(("shop", key::second(key::peer_ip().network(address))), size, None).await.unwrap();
/// # });
/// ```
///
/// With [`Limiter::acquire`](crate::Limiter::acquire), it is the key that you pass.
///
/// Anything else as the key of an address is an error of the kind [`InvalidCall`](StoreErrorKind::InvalidCall). Any other
/// key of another form is another key: its override is stored, but matches no request.
#[derive(Clone)]
pub struct LimitHandle {
    /// Returns the current engine: live limits may have been replaced.
    engine: Arc<dyn Fn() -> Arc<Engine> + Send + Sync>,
    name: Arc<str>,
    /// The size that determines the states of keys, unless it is the limit's own.
    size: Option<Algorithm>,
}

impl LimitHandle {
    pub(crate) fn new(
        engine: impl Fn() -> Arc<Engine> + Send + Sync + 'static,
        name: &str,
    ) -> Result<Self, ConfigError> {
        let handle = Self { engine: Arc::new(engine), name: name.into(), size: None };
        handle.find(&(handle.engine)())?;
        Ok(handle)
    }

    /// Returns the limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a handle for keys with another [size](Limit::size_when) of the limit. Needed if a limit has sizes of
    /// several algorithms or periods, since each of them has its own usage and overrides. Without it, all methods return
    /// an error for such a limit.
    ///
    /// The process knows that from a `size_when`, or from the first request that a [`size_by`](Limit::size_by) has given
    /// such a size.
    ///
    /// ```
    /// use tower_ratelimit::{CalendarWindow, Limit, RateLimitLayer, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let months = |day| CalendarWindow::monthly(1_000).from_day(day);
    /// let limits = RateLimitLayer::new([
    ///     Limit::new("monthly", months(1)).by(key::header("x-customer")).size_by(move |head| {
    ///         Some(months(head.header("x-billing-day")?.parse().ok().filter(|day| (1..29).contains(day))?).into())
    ///     }),
    /// ]);
    /// // Customer 42 pays on the 17th.
    /// limits.limit("monthly").unwrap().at_size(months(17)).reset("42").await.unwrap();
    /// # });
    /// ```
    #[must_use]
    pub fn at_size(&self, size: impl Into<Algorithm>) -> Self {
        Self { size: Some(size.into()), ..self.clone() }
    }

    /// Decides whether `key` could take `cost` tokens now, without charging anything.
    ///
    /// The decision has one outcome, for this limit alone. It uses the key's [override](Self::set_override), if it has
    /// one. It does not use conditions and [other sizes](Limit::size_when), which depend on a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](crate::OnStoreError) is to reject, or if the limit
    /// has been removed from its [`LiveLimits`](crate::LiveLimits).
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        self.call(&key, cost, |_| Ok(()), |engine, charges| engine.decide(charges, Purpose::Peek))
    }

    /// Resets `key`, as if it had never been used. Its override stays.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit has been removed from its
    /// [`LiveLimits`](crate::LiveLimits). If the store did not answer, the key may have been reset.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        self.call(&key, 0, |_| Ok(()), |engine, charges| engine.reset(charges))
    }

    /// Sets the size of the limit for `key`, in place of any previous override. The override expires after
    /// `expires_after`, rounded up to whole microseconds, or never if that is `None`.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`InvalidCall`](StoreErrorKind::InvalidCall) if
    ///
    /// - the limit no longer exists, because live limits were replaced, or is not overridable,
    /// - `size` differs from the limit in more than its tokens: in algorithm, period, refill mode, buckets or rounding,
    /// - `size` and the limit's overage exceed 2^32 − 1 tokens, or
    /// - `expires_after` is 0 or longer than 36,525 days.
    ///
    /// Returns an error of another kind if the store fails, has its [maximum](crate::MemoryStore::max_overrides) of
    /// overrides, or does [not support](StoreErrorKind::NotSupported) them. If the store did not answer, the override
    /// may have been set.
    pub async fn set_override(
        &self,
        key: impl Key,
        size: impl Into<Algorithm>,
        expires_after: Option<Duration>,
    ) -> Result<(), StoreError> {
        if let Some(after) = expires_after.filter(|after| after.is_zero() || *after > LONGEST_OVERRIDE) {
            return Err(StoreError::invalid_call(format_args!(
                "an override expires after {}: give it from 1 ns to 36,525 days, or `None` to keep it until it is \
                 removed",
                exact(after)
            )));
        }
        let value = Override { algorithm: size.into(), expires_after };
        self.access_override(&key, OverrideOperation::Set(value)).await.map(drop)
    }

    /// Returns the override of `key`, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit no longer exists or is not overridable.
    pub fn get_override(&self, key: impl Key) -> StoreFuture<Option<Override>> {
        self.access_override(&key, OverrideOperation::Get)
    }

    /// Removes the override of `key`, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit no longer exists or is not overridable. If the store did
    /// not answer, the override may have been removed.
    pub async fn remove_override(&self, key: impl Key) -> Result<(), StoreError> {
        self.access_override(&key, OverrideOperation::Remove).await.map(drop)
    }

    fn call<T: Send + Unpin + 'static>(
        &self,
        key: &impl Key,
        cost: u64,
        check: impl FnOnce(&Limit) -> Result<(), ConfigError>,
        call: impl FnOnce(&Arc<Engine>, Charges) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let engine = (self.engine)();
        let charges = self.find(&engine).and_then(|(index, limit)| {
            limit.check_size(self.size.as_ref())?;
            check(limit)?;
            let mut charges = engine.limits.no_charges();
            engine.limits.add(&mut charges, index, named(limit, key)?.hash(engine.hasher()), cost);
            if let Some(size) = self.size {
                charges.iter_mut().for_each(|outcome| engine.limits.set_size(&mut outcome.charge, size));
            }
            Ok(charges)
        });
        match charges {
            Ok(charges) => call(&engine, charges),
            Err(error) => StoreFuture::ready(Err(StoreError::invalid_call(error))),
        }
    }

    /// Finds the limit among those of an engine.
    fn find<'a>(&self, engine: &'a Engine) -> Result<(usize, &'a Limit), ConfigError> {
        let found = engine.limits.iter().enumerate().find(|(_, limit)| limit.name() == &*self.name);
        found.ok_or_else(|| {
            ConfigError::new(format!("there is no limit named {:?}: use the name that you built it with", self.name))
        })
    }

    fn access_override(&self, key: &impl Key, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let size = match &operation {
            OverrideOperation::Set(value) => Some(value.algorithm),
            OverrideOperation::Get | OverrideOperation::Remove => None,
        };
        let check = |limit: &Limit| {
            limit.check_override(self.size.as_ref().unwrap_or_else(|| limit.algorithm()), size.as_ref())
        };
        self.call(key, 0, check, |engine, charges| {
            engine.call(charges, engine.deadline(), |store, charges| store.access_override(charges, operation))
        })
    }
}

/// Returns a key as the extractor of the limit writes it: of an address or its text, the network, and of a value with
/// several spellings, the one that is compared. The extractors of a rules file are not known here.
fn named(limit: &Limit, key: &impl Key) -> Result<KeyBuf, ConfigError> {
    let key = KeyBuf::of(key);
    let (Some(extractor), Some(part)) = (&limit.key, key.only_part()) else { return Ok(key) };
    let Some(prefixes) = extractor.prefixes() else {
        let mut named = KeyBuf::default();
        named.push(&extractor.spelling().normalize(part));
        return Ok(named);
    };
    // Four bytes are an address; sixteen may be the text of one.
    let text = str::from_utf8(part).ok().filter(|text| text.len() != 4).and_then(|text| text.parse().ok());
    let address = text.or_else(|| address_of(part)).ok_or_else(|| {
        ConfigError::new(format!("the key of the limit {:?} is not an address: give one, or its text", limit.name()))
    })?;
    Ok(KeyBuf::of(&prefixes.network(address)))
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle").field("name", &self.name).finish_non_exhaustive()
    }
}
