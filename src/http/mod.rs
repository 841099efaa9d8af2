//! The Tower layer, around a router or around routes with costs of their own, and its service. No other code builds
//! responses.
//!
//! The modules, in the order in which a request passes them:
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | this module, [`options`], [`config`] |
//! | Accept a request | [`service`] (a request's way to its response), [`nested`] (layers inside layers) |
//! | Find its limits, keys and costs, or explain them | [`request`](crate::request) |
//! | Reject | [`rejection`], [`on_reject`], [`grpc`], [`error_response`] (errors that handlers return) |
//! | Charge more or less later | [`ledger`], [`account`], [`adjustments`], [`permit`] |
//! | Respond | [`headers`], [`text`], [`body`], [`at_end`] (what happens when a body ends) |
//! | Count requests inside the layer | [`in_flight`] |

mod account;
mod adjustments;
mod at_end;
mod body;
mod config;
mod error_response;
mod grpc;
mod headers;
mod in_flight;
mod ledger;
mod nested;
mod on_reject;
mod options;
mod permit;
mod rejection;
mod service;
mod text;

use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use tower_layer::Layer;

pub use self::body::{BodyPolicy, KeepBody, ResponseBody, WrapBody};
use self::config::LayerConfig;
pub use self::headers::{HeaderStyle, ResetFormat};
pub use self::in_flight::{CountInFlight, InFlight, InFlightFuture, InFlightGuard};
pub use self::on_reject::IntoRejectionResponse;
pub use self::options::HttpOptions;
pub use self::permit::{ChargeError, Permit, Settled};
pub use self::service::{RateLimit, ResponseFuture};
use crate::error::{ConfigError, or_panic};
use crate::explain::Explanation;
use crate::key::head::RequestHead;
use crate::limit::{CostRule, CostTable, Limit, LiveLimits};
use crate::limiter::{Builder, LimitHandle};
use crate::request::explain;
use crate::store::Purpose;

/// Limits the requests that reach a service.
///
/// The layer works with every cloneable service of [`http`] requests and responses, on servers and clients, such as
/// those of Axum, Tonic and Hyper. All limits of a layer are decided together: a request that one of them denies is
/// charged to none. Clones of a layer, and the services that it creates, share their state.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tower_ratelimit::key::KeyExtractor;
/// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer, TokenBucket, key};
///
/// # async fn read() {}
/// # async fn create() {}
/// # async fn report() {}
/// let limits = RateLimitLayer::new([
///     Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
///     Limit::new("daily", FixedWindow::per_day(10_000)).by(key::header("x-api-key").or(key::peer_ip())),
/// ]);
///
/// // This endpoint costs 10, and everything else 1.
/// let costs = CostTable::new().path("/report", 10);
/// let app: Router = Router::new()
///     .route("/user", get(read).post(create))
///     .route("/report", get(report))
///     .layer(limits.costs(costs));
/// ```
///
/// # Position among other layers
///
/// Place layers that should see rejections outside this one: tracing, and CORS. Without CORS outside, browsers can't
/// read a 429, and preflight requests are counted. Place layers that should not run for rejected requests inside.
///
/// In Axum, apply it to a single method router with `route_layer` rather than `layer`: two calls of `layer` leave Rust
/// unable to infer an error type.
///
/// # Nested layers
///
/// Each layer charges the requests that pass it, so apply one layer once to a request: to the router or to its routes.
/// The exception is the same layer with another [cost](Self::cost) inside it.
///
/// A layer that is applied twice charges twice. The layer can't tell this from a handler that calls its own service
/// with the extensions of its request, for example for the parts of a batch, whose requests must be charged. A warning
/// with the remedy is logged once through `tracing`, if a request is charged twice among the first 64 requests of the
/// limiter, or later if the [draft's headers](crate::HeaderStyle::IETF) are sent.
///
/// Nested layers merge their headers. The draft's headers list each name once: of two limits with the same name, the
/// one with less remaining. A warning is logged, because each limit should have its own name. An `X-RateLimit`
/// triple describes the limit that denies, or else the limit with least remaining.
///
/// `P` is [`WrapBody`], or [`KeepBody`] by [`keep_body`](Self::keep_body).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct RateLimitLayer<P = WrapBody> {
    config: Arc<LayerConfig>,
    policy: PhantomData<P>,
}

impl RateLimitLayer {
    /// Creates a layer that keeps its state in memory, charges each request 1 token, and sends the headers of
    /// [`HeaderStyle::IETF`](crate::HeaderStyle::IETF). Use a [`builder`](Self::builder) for anything else.
    ///
    /// Without limits, as from an empty file, it allows every request.
    ///
    /// # Panics
    ///
    /// Panics if [`Builder::try_build`] would return an error.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::builder(limits).build()
    }

    /// Returns a builder of a layer with these limits, which are decided together.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, RateLimitLayer, ResetFormat, key};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .headers(HeaderStyle::XRateLimit(ResetFormat::Seconds))
    ///     .problem_json()
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
        Builder::new(limits)
    }

    /// Returns a builder of a layer whose limits can be replaced at runtime. There may be thousands of them. At
    /// most 64 apply to one request.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer};
    ///
    /// let live = LiveLimits::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let limits = RateLimitLayer::live_builder(&live).build();
    /// live.replace([Limit::new("all", FixedWindow::per_minute(200))])?;
    /// # let _ = limits;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn live_builder(limits: &LiveLimits) -> Builder<HttpOptions> {
        Builder::live(limits)
    }
}

impl<P> RateLimitLayer<P> {
    fn of(config: Arc<LayerConfig>) -> Self {
        Self { config, policy: PhantomData }
    }

    /// Returns a layer for a route whose requests cost `cost` tokens.
    ///
    /// Inside this layer, it charges the difference to the cost that this layer has charged, by a second call to the
    /// store. If that is denied, the request is denied and the earlier charge is refunded. On its own, it charges the
    /// full cost. With a [table](Self::costs) in place of this layer, each request takes one call.
    ///
    /// If this layer denies the request first, the client is told the wait for the cost of this layer, which may be
    /// shorter.
    ///
    /// A lower cost refunds the difference, but this layer has to allow the request first. To exempt a route even when
    /// no tokens are left, give it the cost 0 in a [table](Builder::costs), exempt it by
    /// [`never_limit`](Builder::never_limit), or leave it outside.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("hourly", FixedWindow::per_hour(1_000)).by(key::peer_ip())]);
    ///
    /// let app: Router = Router::new()
    ///     .route("/report", get("report").route_layer(limits.cost(10)))
    ///     .layer(limits);
    /// ```
    ///
    /// Limits with a [cost](Limit::cost) of their own are not affected. For a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue), prefer a [table](Builder::costs): a request that is charged in
    /// two steps waits behind its own first slot.
    ///
    /// # Panics
    ///
    /// Panics if an enforced limit could never allow the cost. [`try_cost`](Self::try_cost) returns an error instead.
    #[track_caller]
    pub fn cost(&self, cost: u64) -> Self {
        or_panic(self.try_cost(cost))
    }

    /// Fallible version of [`cost`](Self::cost), for a cost that is known only at runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if an enforced limit could never allow the cost.
    pub fn try_cost(&self, cost: u64) -> Result<Self, ConfigError> {
        self.route_cost(CostRule::Constant(cost))
    }

    /// Returns a layer of the same limits that takes the cost of each request from a table. Use it in place of this
    /// layer. It makes one call to the store for each request. See [`cost`](Self::cost).
    ///
    /// # Panics
    ///
    /// Panics if an enforced limit could never allow one of the costs, or a path in the table does not start with a
    /// slash, or has a query.
    #[track_caller]
    pub fn costs(&self, costs: CostTable) -> Self {
        or_panic(self.route_cost(CostRule::Table(Arc::new(costs))))
    }

    /// Returns a layer for routes whose costs are computed by a closure. See [`cost`](Self::cost). A cost of 0 takes
    /// nothing. A cost over a limit's capacity is denied.
    pub fn cost_by(&self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        or_panic(self.route_cost(CostRule::Closure(Arc::new(cost))))
    }

    fn route_cost(&self, cost: CostRule) -> Result<Self, ConfigError> {
        self.config.with_cost(cost).map(Self::of)
    }

    /// Returns a layer that keeps the type of response bodies, which has to be `From<Bytes>`.
    ///
    /// This layer wraps each body in a [`ResponseBody`], which Axum then boxes. Keeping the type saves that allocation
    /// per response. The bodies of Axum and
    /// [`Full`](https://docs.rs/http-body-util/latest/http_body_util/struct.Full.html) are `From<Bytes>`; those of
    /// Tonic and other boxed bodies are not.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())]);
    /// let app: Router = Router::new().route("/", get("hello")).layer(limits.keep_body());
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if a limit [settles](Limit::settle_at_end) or [returns slots](Limit::concurrent) at the end of a body, which
    /// such a layer does not observe.
    #[track_caller]
    pub fn keep_body(&self) -> RateLimitLayer<KeepBody> {
        RateLimitLayer::of(or_panic(self.config.with_kept_body()))
    }

    /// Returns the names of all headers that the layer can add to a response, for CORS to expose. They don't include
    /// gRPC's own, such as `grpc-status`, which gRPC-Web needs exposed for every response.
    ///
    /// ```
    /// use tower_http::cors::CorsLayer;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let cors = CorsLayer::new().expose_headers(limits.exposed_headers());
    /// # let _ = cors;
    /// ```
    #[doc(alias = "cors")]
    #[must_use]
    pub fn exposed_headers(&self) -> Vec<HeaderName> {
        self.config.headers.names()
    }

    /// Returns the limits in the order in which they were given. With [`LiveLimits`], these are the limits that the
    /// layer was built with. [`LiveLimits::limits`] returns the current ones.
    pub fn limits(&self) -> &[Limit] {
        &self.config.engine().limits
    }

    /// Explains what the layer would do with a request now, without charging it. See [`explain`](crate::explain).
    ///
    /// The request has this layer's cost. A layer with another [cost](Self::cost) inside it is not taken into account.
    /// Extractors and conditions read the head as if the request had reached the layer, so it needs what outer layers
    /// and the server would add: the peer's address ([`PeerAddr`](crate::key::PeerAddr)), the matched route
    /// ([`RoutePattern`](crate::key::RoutePattern)), and extensions. To explain real requests, call this from a
    /// middleware in the place of the layer:
    ///
    /// ```
    /// use axum::extract::{Request, State};
    /// use axum::middleware::{self, Next};
    /// use axum::response::{IntoResponse, Response};
    /// use axum::{Router, routing::get};
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead};
    ///
    /// /// Answers requests with the header `x-explain` with an explanation. Let only administrators send it.
    /// async fn explain(State(limits): State<RateLimitLayer>, request: Request, next: Next) -> Response {
    ///     if !request.headers().contains_key("x-explain") {
    ///         return next.run(request).await;
    ///     }
    ///     let explanation = limits.explain(&RequestHead::of(&request)).await;
    ///     explanation.to_string().into_response() // or `Json(explanation)`, with the feature `serde`
    /// }
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let app: Router = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(limits.clone())
    ///     .layer(middleware::from_fn_with_state(limits, explain));
    /// ```
    pub async fn explain(&self, head: &RequestHead<'_>) -> Explanation {
        explain(&self.config.current().requests, head, Purpose::Preview).await
    }

    /// Returns a handle of the limit called `name`, which inspects, resets and overrides single keys.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has that name.
    pub fn limit(&self, name: &str) -> Result<LimitHandle, ConfigError> {
        let config = self.config.clone();
        LimitHandle::new(move || config.current().engine().clone(), name)
    }
}

impl Builder<HttpOptions> {
    /// Builds the layer.
    ///
    /// # Panics
    ///
    /// Panics if [`try_build`](Self::try_build) would return an error.
    #[track_caller]
    pub fn build(self) -> RateLimitLayer {
        or_panic(self.try_build())
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns an error if the [configuration is invalid](Self#errors).
    pub fn try_build(self) -> Result<RateLimitLayer, ConfigError> {
        let (engine, limits, options) = self.into_engine()?;
        LayerConfig::new(engine, options).checked(limits.as_ref()).map(RateLimitLayer::of)
    }
}

impl<S, P> Layer<S> for RateLimitLayer<P> {
    type Service = RateLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, &self.config)
    }
}
