//! The layer: what to limit, and how to say so.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Response};
use tower_layer::Layer;

use super::header_style::HeaderStyle;
use super::headers::Headers;
use super::keep_body::KeepBodyLayer;
use super::lists::Lists;
use super::rejection::Rejection;
use super::service::RateLimit;
use super::shared::{Shared, Variant};
use super::wording::{Body, Wording};
use crate::cost::{Cost, CostTable};
use crate::error::{ConfigError, or_panic};
use crate::limit::{Derived, Limit, LiveLimits};
use crate::list::ListAction;
use crate::observe::{Event, Observer};
use crate::on_store_error::OnStoreError;
use crate::overrides::Overrides;
use crate::request::RequestHead;
use crate::resilience::{CircuitBreaker, StoreClient};
use crate::store::Store;
use crate::when::Condition;

/// Limits the requests that reach a service.
///
/// It fits every service of `http` requests and responses that can be cloned: Axum's, Tonic's,
/// Hyper's, servers and clients. All limits are decided together: a request that one of them denies takes nothing from
/// any. Clones of a layer, and the services that it makes, share what has been used.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, TokenBucket, key};
///
/// # async fn read() {}
/// # async fn create() {}
/// # async fn report() {}
/// let limits = RateLimitLayer::new([
///     Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
///     Limit::new("daily", FixedWindow::per_day(10_000)).by(key::header("x-api-key").or(key::peer_ip())),
/// ]);
/// # use tower_ratelimit::key::KeyExtractor;
///
/// let app: Router = Router::new()
///     .route("/user", get(read).post(create))
///     .route("/report", get(report).route_layer(limits.cost(10))) // this endpoint costs 10
///     .layer(limits); // everything else costs 1
/// ```
///
/// # Order
///
/// Further out, put what a refusal should pass through too: tracing, CORS (or browsers can't read
/// a 429, and preflights are counted). Further in, what is not to run for refused requests.
///
/// In Axum, use `route_layer` rather than `layer` on
/// a single method router: Rust can't infer the error type of the latter when there are two.
///
/// # Layers around each other
///
/// Each layer charges the requests that pass it. Apply one layer once to a request: on the router or on its routes.
/// The exception is a route with a [cost](Self::cost) of its own, inside the same limiter's layer on the router.
///
/// A layer that is applied twice charges twice. It can't be told from a handler that calls its own service once
/// more with the extensions of the request that it handles, such as for the parts of a batch, and those must not pass
/// free. The first time that it happens, `tracing` gets a warning with the remedy: among the first 64 requests of the
/// limiter in any case, and later where the [draft's headers](HeaderStyle::IETF) are told.
///
/// Different layers around each other merge what they tell: the draft's headers list each name once, of two
/// limits with one name that with less remaining (which is warned of, too: give each a name of its own), and an
/// `X-RateLimit` triple is of the limit that denies, or else of the one with least remaining.
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer {
    shared: Arc<Shared>,
}

impl RateLimitLayer {
    /// Limits that are decided together, all or nothing: in memory, each request at a cost of 1,
    /// told by [`HeaderStyle::IETF`], unless the methods below say otherwise. With no limits, as from a file that has
    /// none, every request is allowed.
    ///
    /// # Panics
    ///
    /// When more than 64 may apply to one request, two have one name, or one has a constant
    /// cost over its capacity. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::try_new(limits))
    }

    /// Like [`new`](Self::new), for limits that are not known to be right.
    ///
    /// # Errors
    ///
    /// When more than 64 may apply to one request, two have one name, or one has a constant
    /// cost over its capacity.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        Ok(Self::over(StoreClient::new(limits.into_iter().collect())?, None))
    }

    /// Limits that can be replaced while they are gone by, and otherwise as with [`new`](Self::new): there may be
    /// none, or thousands, of which at most 64 apply to one request. See [`LiveLimits`].
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer};
    ///
    /// let rules = LiveLimits::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let limits = RateLimitLayer::with_live_limits(&rules);
    /// rules.replace([Limit::new("all", FixedWindow::per_minute(200))])?;
    /// # let _ = limits;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn with_live_limits(rules: &LiveLimits) -> Self {
        Self::over(StoreClient::following(&rules.snapshot()), Some(Derived::new(rules.clone())))
    }

    fn over(client: StoreClient, following: Option<Derived<Shared>>) -> Self {
        let shared = Shared {
            headers: Headers::new([HeaderStyle::IETF], client.limits().as_slice()),
            client: Arc::new(client),
            lists: Lists::default(),
            cost: Cost::Constant(1),
            wording: Wording::default(),
            permits: false,
            identity: Arc::default(),
            variant: Variant::default(),
            following,
            set: None,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Who is never limited: requests of which a condition holds, such as an
    /// [`AddressList`](crate::AddressList), a [`KeyList`](crate::KeyList) or one of [`when`](crate::when).
    /// They go on before any key is looked for or any store asked: nothing is charged, and they are told
    /// nothing of limits. Said again, it adds to what was said before.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key, when};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .never_limit(AddressList::new(key::peer_ip(), ["10.0.0.0/8"]))
    ///     .never_limit(when::route("/health"));
    /// # let _ = limits;
    /// ```
    ///
    /// Whoever is [always refused](Self::always_reject) is so even if this holds of them too: to be exempt
    /// from limits is no way in. For an exception to that, say it there:
    /// `always_reject(blocked.and(when::not(offices)))`.
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    pub fn never_limit(mut self, list: impl Condition) -> Self {
        self.shared().lists.exempt(list);
        self
    }

    /// Who is always refused, with 403: requests of which a condition holds, such as an
    /// [`AddressList`](crate::AddressList) or a [`KeyList`](crate::KeyList). They end here before any key is
    /// looked for or any store asked, with [`Reason::Listed`](crate::Reason::Listed) and no header that tells
    /// of limits; [`Event::ListMatched`] tells an observer. So they do while the limits are in the
    /// [shadow](Self::shadow): no limit refuses them. gRPC requests get `PERMISSION_DENIED`. Said again, it
    /// adds to what was said before; of several that hold, the first counts.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let blocked = AddressList::new(key::peer_ip(), ["198.51.100.0/24"]);
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject(blocked.clone());
    /// # let _ = limits;
    /// ```
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    pub fn always_reject(self, list: impl Condition) -> Self {
        self.always_reject_with(ListAction::Forbidden, list)
    }

    /// Like [`always_reject`](Self::always_reject), with another answer; or with none, to try a list out.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, KeyList, Limit, RateLimitLayer, ListAction, key};
    ///
    /// let overdue = KeyList::new(key::header("x-api-key"), ["3f6c0a"]);
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject_with(ListAction::TooManyRequests, overdue);
    /// # let _ = limits;
    /// ```
    pub fn always_reject_with(mut self, refusal: ListAction, list: impl Condition) -> Self {
        self.shared().lists.refuse(list, refusal);
        self
    }

    /// Enforces none of the limits: all are in the [shadow](Limit::shadow), and clients are told nothing.
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    pub fn shadow(mut self) -> Self {
        self.client().shadow();
        let shared = self.shared();
        shared.identity = Arc::default();
        shared.headers.set_limits(shared.client.limits().as_slice());
        self
    }

    /// Another store. Limiters that are given one store share it: their limits of the same name,
    /// algorithm and period count together.
    ///
    /// Which one need not be known when the program is compiled: an `Arc<dyn Store>` is a store.
    ///
    /// Say so before [`cost`](Self::cost): what was made of this limiter before keeps its store, and
    /// is another limiter from now on.
    pub fn store(mut self, store: impl Store) -> Self {
        let shared = self.shared();
        // What one store was charged, another can't give back: it is another limiter from here on.
        shared.identity = Arc::default();
        Arc::make_mut(&mut shared.client).set_store(store);
        self
    }

    /// How long the store may take for a request, from 1 ns: 50 ms, unless this says otherwise. It counts
    /// for all that the store is asked for the request, and not for what a
    /// [`from_async_fn`](crate::key::from_async_fn) of yours takes to find its key. Past it,
    /// [`on_store_error`](Self::on_store_error) says what happens. The store may do what it was asked all
    /// the same: the request is then charged for nothing, and limits are stricter, never laxer.
    ///
    /// A store that does not answer at once is asked on a Tokio runtime, with its timers enabled.
    ///
    /// # Panics
    ///
    /// When it is 0. [`try_deadline`](Self::try_deadline) returns an error instead.
    #[track_caller]
    pub fn deadline(self, deadline: Duration) -> Self {
        or_panic(self.try_deadline(deadline))
    }

    /// Like [`deadline`](Self::deadline), for a time that is not known to be right.
    ///
    /// # Errors
    ///
    /// When it is 0.
    pub fn try_deadline(mut self, deadline: Duration) -> Result<Self, ConfigError> {
        self.client().set_deadline(deadline)?;
        Ok(self)
    }

    /// When the store is no longer asked, and for how long. Say so before [`cost`](Self::cost): what was
    /// made of this limiter before keeps its breaker.
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.client().set_breaker(breaker);
        self
    }

    /// This limiter, for a route whose requests cost `cost` tokens.
    ///
    /// On a route, inside the same limiter's layer on the router, it charges the difference to
    /// what that has charged. If that is denied, the request is, and what was charged is given
    /// back. On its own, it charges the cost. A lower cost gives the difference back, but the request
    /// has to get past the router's layer first: to exempt a route whatever is left, give it the cost
    /// 0 in a table ([`costs`](Self::costs)), or leave it outside. One
    /// layer that is [applied twice](Self#layers-around-each-other) charges twice.
    ///
    /// Limits with a [`cost`](Limit::cost) of their own are not concerned. For a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue), prefer [`costs`](Self::costs): charged in two
    /// steps, a request waits for its own first slot.
    ///
    /// # Panics
    ///
    /// When a limit could never allow that cost. [`try_cost`](Self::try_cost) returns an error
    /// instead.
    #[track_caller]
    pub fn cost(&self, cost: u64) -> Self {
        or_panic(self.try_cost(cost))
    }

    /// Like [`cost`](Self::cost), for a cost that is not known to be right.
    ///
    /// # Errors
    ///
    /// When a limit could never allow that cost.
    pub fn try_cost(&self, cost: u64) -> Result<Self, ConfigError> {
        self.costing(Cost::Constant(cost))
    }

    /// This limiter, with costs by method and route, instead of those that it had.
    ///
    /// # Panics
    ///
    /// When a limit could never allow one of the costs, or a path does not start with a slash.
    /// [`try_costs`](Self::try_costs) returns an error instead.
    #[track_caller]
    pub fn costs(&self, costs: CostTable) -> Self {
        or_panic(self.try_costs(costs))
    }

    /// Like [`costs`](Self::costs), for costs that are not known to be right.
    ///
    /// # Errors
    ///
    /// When a limit could never allow one of the costs, or a path does not start with a slash.
    pub fn try_costs(&self, costs: CostTable) -> Result<Self, ConfigError> {
        self.costing(Cost::Table(Arc::new(costs)))
    }

    /// This limiter, with costs that a closure takes from requests. A cost of 0 takes nothing; one
    /// over a limit's capacity is denied.
    pub fn cost_by(&self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        let mut layer = self.clone();
        layer.shared().cost = Cost::By(Arc::new(cost));
        layer
    }

    /// Gives each request a [`Permit`](crate::Permit), by which its handler charges more, settles, gives
    /// back or forgets. It costs a few allocations.
    pub fn permits(mut self) -> Self {
        self.shared().permits = true;
        self
    }

    /// Tells clients where they stand in other styles: several at once, or, with `[]`, in none.
    /// `Retry-After` is always told. Of two that differ only in their [`Reset`](crate::Reset) or in the draft's version,
    /// the first counts.
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, RateLimitLayer, Reset};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(Reset::Seconds)]);
    /// # let _ = limits;
    /// ```
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.shared().headers.set_styles(styles);
        self
    }

    /// The names of all headers that this limiter can add to a response: for CORS to expose. (Not
    /// gRPC's own, such as `grpc-status`, which gRPC-Web needs exposed for every answer.)
    ///
    /// ```
    /// use tower_http::cors::CorsLayer;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let cors = CorsLayer::new().expose_headers(limits.exposed_headers());
    /// # let _ = cors;
    /// ```
    #[must_use]
    pub fn exposed_headers(&self) -> Vec<HeaderName> {
        self.shared.headers.names()
    }

    /// Answers refused requests with `application/problem+json` (RFC 9457) rather than plain text.
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    pub fn problem_json(mut self) -> Self {
        self.shared().wording.body = Body::ProblemJson;
        self
    }

    /// Answers refused requests with what a closure makes of them: a response whose body is text or
    /// bytes, whole. `Retry-After` and `Cache-Control` are added where it has not set them. Genuine gRPC
    /// requests are answered as [`grpc_rejections`](Self::grpc_rejections) says. It words all refusals, whatever their
    /// [reason](crate::Rejection::reason).
    ///
    /// Say so before [`cost`](Self::cost), as of a store.
    ///
    /// ```
    /// use http::Response;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]).on_reject(|rejection| {
    ///     let json = format!(r#"{{"error":"{}"}}"#, rejection.message());
    ///     let response = Response::builder().status(rejection.status()).header("content-type", "application/json");
    ///     response.body(json).unwrap()
    /// });
    /// # let _ = limits;
    /// ```
    pub fn on_reject<B: Into<Bytes>>(
        mut self,
        word: impl Fn(&Rejection<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.shared().wording.body = Body::Custom(Arc::new(move |rejection| word(rejection).map(Into::into)));
        self
    }

    /// Chooses whether genuine gRPC and gRPC-Web requests are rejected with a gRPC status: they are by default.
    /// Call before [`cost`](Self::cost); layers already derived are unaffected.
    ///
    /// gRPC clients take the HTTP status 429 for "unavailable", which many retry at once. So a request that is
    /// genuinely gRPC gets 200 OK with `grpc-status`, as that protocol wants, and error details
    /// (`google.rpc.RetryInfo` and `QuotaFailure`) that name the limits that deny. A request is genuine if it is a
    /// `POST` with the content type `application/grpc` over HTTP/2 or later, or with `application/grpc-web` or
    /// `application/grpc-web-text` over any version of HTTP.
    ///
    /// Any client can send such a request. Where the service behind the limits serves no gRPC, turn this off: then every
    /// rejection has an HTTP error status, and whatever counts 429 or 403, such as a proxy or a ban list, counts them
    /// all.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]).grpc_rejections(false);
    /// # let _ = limits;
    /// ```
    pub fn grpc_rejections(mut self, enabled: bool) -> Self {
        self.shared().wording.grpc = enabled;
        self
    }

    /// What becomes of requests when the store can't decide: refused, unless this says otherwise.
    /// [`Limit::on_store_error`] says so for a limit.
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.client().set_policy(policy);
        self
    }

    /// Tells a closure what happens, for metrics and logs. It is called where it happens, and should not
    /// dawdle. Said twice, the last counts.
    pub fn observe(mut self, tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.client().set_observer(Observer::new(tell));
        self
    }

    /// This limiter, for services whose responses' bodies can be made of [`Bytes`], as those of Axum and
    /// [`Full`](https://docs.rs/http-body-util/latest/http_body_util/struct.Full.html) can: their responses keep
    /// the type of body that they have, where others have a [`ResponseBody`](crate::ResponseBody) around it.
    /// Axum, which has one type of body, would put that in a box: it saves an allocation for each response.
    /// Tonic's and boxed ones are not `From<Bytes>`: there, use the layer itself.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())]);
    /// let app: Router = Router::new().route("/", get(async || "hello")).layer(limits.keep_body());
    /// ```
    pub fn keep_body(&self) -> KeepBodyLayer {
        KeepBodyLayer::new(self.clone())
    }

    /// The limits, in the order in which they were given: of rules that can be replaced, those that there
    /// were when this layer was made.
    pub fn limits(&self) -> &[Limit] {
        self.shared.client.limits().as_slice()
    }

    /// The overrides of a limit: other sizes of it for single keys. They are in the store that the layer has now:
    /// say so after [`store`](Self::store).
    ///
    /// # Errors
    ///
    /// When no limit has that name, or it is not [overridable](Limit::overridable).
    pub fn overrides(&self, limit: &str) -> Result<Overrides, ConfigError> {
        let shared = self.shared.clone();
        Overrides::new(move || shared.present().client.clone(), limit)
    }

    fn costing(&self, cost: Cost) -> Result<Self, ConfigError> {
        cost.validate()?;
        if let Some(largest) = cost.largest() {
            match &self.shared.following {
                Some(following) => following.live_limits().require_cost(largest)?,
                None => self.shared.client.limits().check_cost(largest)?,
            }
        }
        let mut layer = self.clone();
        layer.shared().cost = cost;
        Ok(layer)
    }

    /// What is shared, to change it: a copy, once there are other users of it.
    fn shared(&mut self) -> &mut Shared {
        let shared = Arc::make_mut(&mut self.shared);
        shared.following.iter_mut().for_each(Derived::reset);
        shared
    }

    fn client(&mut self) -> &mut StoreClient {
        Arc::make_mut(&mut self.shared().client)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.shared.note_use();
        // So that the first request does not have to prepare thousands of limits.
        self.shared.prepare();
        RateLimit::new(inner, self.shared.clone())
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
