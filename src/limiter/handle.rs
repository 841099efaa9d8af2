//! The handle of one limit, for administration.

use std::fmt;
use std::sync::Arc;

use crate::decision::{Cells, Decision};
use crate::error::{ConfigError, StoreError};
use crate::key::{self, Key};
use crate::limit::Limit;
use crate::resilience::StoreClient;
use crate::store::StoreFuture;

/// Inspects and resets single keys of one limit, for example in an admin endpoint.
///
/// Created by [`RateLimitLayer::limit`](crate::RateLimitLayer::limit) or [`Limiter::limit`](crate::Limiter::limit).
/// Clones refer to the same limit. [`Overrides`](crate::Overrides) lists the key that each extractor takes from
/// requests.
///
/// ```
/// use axum::extract::{Path, State};
/// use axum::http::StatusCode;
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{FixedWindow, Limit, LimitHandle, RateLimitLayer, key};
///
/// // GET /customers/42/quota
/// async fn quota(State(daily): State<LimitHandle>, Path(customer): Path<String>) -> Result<String, StatusCode> {
///     let decision = daily.peek(&customer, 1).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
///     let left = decision.outcomes().first().map_or(0, |outcome| outcome.remaining());
///     Ok(format!("{left} left"))
/// }
///
/// // DELETE /customers/42/quota
/// async fn reset(State(daily): State<LimitHandle>, Path(customer): Path<String>) -> StatusCode {
///     match daily.reset(&customer).await {
///         Ok(()) => StatusCode::NO_CONTENT,
///         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
///     }
/// }
///
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer"))]);
/// let admin: Router = Router::new()
///     .route("/customers/{customer}/quota", get(quota).delete(reset))
///     .with_state(limits.limit("daily").unwrap());
/// let app: Router = Router::new().route("/", get("hello")).layer(limits).merge(admin);
/// ```
#[derive(Clone)]
pub struct LimitHandle {
    /// Returns the current client: live limits may have been replaced.
    client: Arc<dyn Fn() -> Arc<StoreClient> + Send + Sync>,
    name: Arc<str>,
}

impl LimitHandle {
    pub(crate) fn new(
        client: impl Fn() -> Arc<StoreClient> + Send + Sync + 'static,
        name: &str,
    ) -> Result<Self, ConfigError> {
        let handle = Self { client: Arc::new(client), name: name.into() };
        handle.find(&handle.client())?;
        Ok(handle)
    }

    /// Returns the limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Decides whether `key` could take `cost` tokens now, without charging anything.
    ///
    /// The decision has one outcome, for this limit alone. It uses the key's [override](crate::Overrides), if it has
    /// one. It does not use conditions and [other sizes](Limit::size_when), which depend on a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](crate::OnStoreError) is to reject, or if the limit
    /// has been removed from its [`LiveLimits`](crate::LiveLimits).
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        self.call(&key, cost, |client, cells| client.peek(cells))
    }

    /// Resets `key`, as if it had never been used. Its override stays.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the limit has been removed from its
    /// [`LiveLimits`](crate::LiveLimits). If the store did not answer, the key may have been reset.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        self.call(&key, 0, |client, cells| client.reset_cells(&cells))
    }

    fn call<T: Send + Unpin + 'static>(
        &self,
        key: &impl Key,
        cost: u64,
        call: impl FnOnce(&Arc<StoreClient>, Cells) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let client = self.client();
        match self.find(&client) {
            Ok((limit, _)) => {
                let mut cells = Cells::new();
                client.limits().add(&mut cells, limit, key::hash(key, client.hasher()), cost);
                call(&client, cells)
            }
            Err(removed) => StoreFuture::ready(Err(StoreError::of_one_request(removed))),
        }
    }

    pub(crate) fn client(&self) -> Arc<StoreClient> {
        (self.client)()
    }

    /// Finds the limit among those of a client.
    pub(crate) fn find<'a>(&self, client: &'a StoreClient) -> Result<(usize, &'a Limit), ConfigError> {
        let found = client.limits().as_slice().iter().enumerate().find(|(_, limit)| limit.name() == &*self.name);
        found.ok_or_else(|| {
            ConfigError::new(format!("there is no limit named {:?}: use the name that you built it with", self.name))
        })
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle").field("name", &self.name).finish_non_exhaustive()
    }
}
