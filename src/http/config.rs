//! The configuration of a layer: its options, such as lists, costs and responses, and the state that the layers of one
//! limiter share: one around a router, and others around routes with costs of their own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Response};
use smallvec::SmallVec;

use super::body::{IntoRejectionResponse, Reported};
use super::headers::{HeaderStyle, Headers};
use super::response::{Body, RejectionFormat};
use crate::decision::Decision;
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::explain::{ListExplanation, ListKind};
use crate::key::head::RequestHead;
#[cfg(feature = "tracing")]
use crate::limit::Limit;
use crate::limit::{CostRule, CostTable, Live, LiveLimits};
use crate::limiter::Builder;
use crate::recorder::{Event, Reason, Rejection};
use crate::select::{Condition, ListAction};

/// The options that only a [`RateLimitLayer`](crate::RateLimitLayer) has: see its
/// [`builder`](crate::RateLimitLayer::builder).
#[derive(Clone)]
pub struct HttpOptions {
    lists: Lists,
    cost: CostRule,
    styles: Vec<HeaderStyle>,
    format: RejectionFormat,
    permits: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            lists: Lists::default(),
            cost: CostRule::Constant(1),
            styles: vec![HeaderStyle::IETF],
            format: RejectionFormat::default(),
            permits: false,
        }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions").finish_non_exhaustive()
    }
}

impl Builder<HttpOptions> {
    /// Exempts the requests for which a condition holds: an [`AddressList`](crate::AddressList), a
    /// [`KeyList`](crate::KeyList), or any condition of [`when`](crate::when). Adds to earlier calls.
    ///
    /// Exempt requests are forwarded before keys are extracted or the store is called. They are not charged, and their
    /// responses have no headers about limits. A list of addresses that covers all of IPv4, or all public addresses
    /// of IPv6, is logged as a warning.
    ///
    /// [`always_reject`](Self::always_reject) takes precedence. To exclude exempt requests from it, negate the
    /// condition: `always_reject(blocked.and(when::not(offices)))`.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key, when};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .never_limit(AddressList::new(key::peer_ip(), ["10.0.0.0/8"]))
    ///     .never_limit(when::route("/health"))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn never_limit(mut self, condition: impl Condition) -> Self {
        #[cfg(feature = "tracing")]
        if condition.covers_family() {
            tracing::warn!("`never_limit` exempts all requests of an address family: list smaller networks");
        }
        self.options.lists.add(ListKind::Exempts, condition);
        self
    }

    /// Rejects the requests for which a condition holds with 403, or `PERMISSION_DENIED` for gRPC. Adds to earlier
    /// calls.
    ///
    /// They are rejected before keys are extracted or the store is called, with [`Reason::Listed`] and without headers
    /// about limits, and observers receive [`Event::ListMatched`]. [Shadow mode](Self::shadow) has no effect on lists.
    /// If several conditions hold, the first one determines the response.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let blocked = AddressList::new(key::peer_ip(), ["198.51.100.0/24"]);
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject(blocked.clone())
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn always_reject(self, condition: impl Condition) -> Self {
        self.always_reject_with(ListAction::Forbidden, condition)
    }

    /// Rejects requests as [`always_reject`](Self::always_reject) does, with another response; or only reports them, to
    /// try a list out.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, KeyList, Limit, ListAction, RateLimitLayer, key};
    ///
    /// let overdue = KeyList::new(key::header("x-api-key"), ["3f6c0a"]);
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject_with(ListAction::TooManyRequests, overdue)
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn always_reject_with(mut self, action: ListAction, condition: impl Condition) -> Self {
        self.options.lists.add(ListKind::Rejects(action), condition);
        self
    }

    /// Sets the cost of a request in tokens. Defaults to 1.
    ///
    /// Limits with a [cost](crate::Limit::cost) of their own ignore it. For a single route, use
    /// [`RateLimitLayer::cost`](crate::RateLimitLayer::cost).
    pub fn cost(mut self, cost: u64) -> Self {
        self.options.cost = CostRule::Constant(cost);
        self
    }

    /// Sets the cost of a request by its method and route.
    ///
    /// ```
    /// use http::Method;
    /// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer};
    ///
    /// let costs = CostTable::new().route(Method::POST, "/users", 2).path("/reports/{id}", 10);
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))]).costs(costs).build();
    /// # let _ = limits;
    /// ```
    pub fn costs(mut self, costs: CostTable) -> Self {
        self.options.cost = CostRule::Table(Arc::new(costs));
        self
    }

    /// Sets a closure that returns the cost of a request. A cost of 0 takes nothing. A cost over a limit's capacity is
    /// denied.
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.options.cost = CostRule::Closure(Arc::new(cost));
        self
    }

    /// Gives each request a [`Permit`](crate::Permit), with which its handler can charge more, settle, refund or reset.
    /// Costs a few allocations per request.
    pub fn permits(mut self) -> Self {
        self.options.permits = true;
        self
    }

    /// Sets the response headers that report the remaining tokens of limits. Defaults to [`HeaderStyle::IETF`].
    ///
    /// Takes one style or several; `[]` disables them all. `Retry-After` is always sent. Of two styles that differ
    /// only in their [`ResetFormat`](crate::ResetFormat) or in the version of the draft, the first one is used.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, RateLimitLayer, ResetFormat};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)])
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.options.styles = styles.into_iter().collect();
        self
    }

    /// Adds a random time of up to `longest` to the wait in each rejection. So clients that are denied together do not
    /// all return at the same instant. Defaults to [`Duration::ZERO`].
    ///
    /// A client is never told less than the exact wait, up to [`max_retry_after`](Self::max_retry_after). The jitter is
    /// included in `Retry-After`,
    /// `X-Ratelimit-Retry-After`, the message, and the waits of gRPC, but not in headers that describe limits. Choose a
    /// span in which your service can serve all clients that wait, of at least some seconds, since `Retry-After` is in
    /// whole seconds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .retry_after_jitter(Duration::from_secs(10))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn retry_after_jitter(mut self, longest: Duration) -> Self {
        self.options.format.longest_jitter = longest;
        self
    }

    /// Sets the longest wait that clients are told, in whole seconds, at least 1. Defaults to 2,147,483 seconds, almost
    /// 25 days.
    ///
    /// JavaScript's timers fire at once if they are set to more than 2^31 − 1 milliseconds, and some clients can't
    /// represent longer waits. A client that is told a shorter wait than the exact one is denied again afterwards, with
    /// the rest of the wait. Holds for `Retry-After`, `X-Ratelimit-Retry-After`, the message, and the waits of gRPC; and
    /// for the times in headers that describe a limit which would deny the same request once more. The exact wait is
    /// [`Rejection::retry_after`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{CalendarWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("yearly", CalendarWindow::yearly(100))])
    ///     .max_retry_after(Duration::from_secs(86_400))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.options.format.longest_wait = Some(Duration::from_secs(longest.as_secs().max(1)));
        self
    }

    /// Rejects requests with `application/problem+json` (RFC 9457) instead of plain text.
    pub fn problem_json(mut self) -> Self {
        self.options.format.body = Body::ProblemJson;
        self
    }

    /// Rejects requests with the response that a closure returns, whatever the [reason](Rejection::reason).
    ///
    /// The closure also sets the status: return `(rejection.status(), text)`, because text alone is sent with 200.
    ///
    /// With the feature `axum`, that is anything that implements Axum's `IntoResponse`. Otherwise, it is an
    /// [`http::Response`] with a body, such as text. `Retry-After` and `Cache-Control` are added unless the response
    /// has them. Genuine gRPC requests are rejected as described at [`grpc_rejections`](Self::grpc_rejections).
    ///
    /// The body must be complete when the closure returns, as text, bytes and JSON are. A body that is still being
    /// produced, or is longer than 1 MiB or 1,024 frames, is replaced by an empty one.
    ///
    /// ```
    /// use axum::response::Html;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .on_reject(|rejection| (rejection.status(), Html(format!("<h1>{}</h1>", rejection.message()))))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn on_reject<R: IntoRejectionResponse>(
        mut self,
        respond: impl Fn(&Rejection<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        let reported = Reported::default();
        let respond = move |rejection: &Rejection<'_>| respond(rejection).into_rejection_response(&reported);
        self.options.format.body = Body::Custom(Arc::new(respond));
        self
    }

    /// Chooses whether genuine gRPC and gRPC-Web requests are rejected with a gRPC status. Defaults to `true`.
    ///
    /// gRPC clients map the HTTP status 429 to `UNAVAILABLE`, which many of them retry at once. So a genuine gRPC
    /// request is rejected with 200 OK and `grpc-status`, as that protocol requires, and with error details
    /// (`google.rpc.RetryInfo` and `QuotaFailure`) that name the limits that deny. A request is genuine if it is a
    /// `POST` with the content type `application/grpc` over HTTP/2 or later, or with `TE: trailers`, which a layer that
    /// translates gRPC-Web adds over any version. Or its content type is `application/grpc-web` or
    /// `application/grpc-web-text`, over any version.
    ///
    /// Any client can send such a request. If the service does not serve gRPC, turn this off. Then every rejection has
    /// an HTTP error status, so that a proxy or a ban list that counts 429 or 403 responses sees them all.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .grpc_rejections(false)
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn grpc_rejections(mut self, enabled: bool) -> Self {
        self.options.format.ignores_grpc = !enabled;
        self
    }
}

/// The lists of a layer, which are checked before anything else: those that reject requests, then those that exempt
/// them.
#[derive(Clone, Default)]
pub(super) struct Lists(Vec<(ListKind, Arc<dyn Condition>)>);

impl Lists {
    /// Adds a list.
    fn add(&mut self, kind: ListKind, list: impl Condition) {
        self.0.push((kind, Arc::new(list)));
        self.0.sort_by_key(|(kind, _)| *kind == ListKind::Exempts);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the kind of list that a request is on. A rejection takes precedence over an exemption. Also returns the
    /// lists of requests to reject that the request is on, up to the first that is not in shadow mode.
    pub(super) fn find(&self, head: &RequestHead<'_>) -> (Option<ListKind>, SmallVec<[ListAction; 1]>) {
        let mut matched = SmallVec::new();
        for (kind, _) in self.0.iter().filter(|list| is_on(list, head)) {
            if let ListKind::Rejects(action) = kind {
                matched.push(*action);
            }
            if *kind != ListKind::Rejects(ListAction::Shadow) {
                return (Some(*kind), matched);
            }
        }
        (None, matched)
    }

    /// Explains which lists a request is on.
    pub(super) fn explain(&self, head: &RequestHead<'_>) -> Vec<ListExplanation> {
        let explain = |list: &(ListKind, Arc<dyn Condition>)| ListExplanation {
            kind: list.0,
            condition: list.1.describe(),
            matches: is_on(list, head),
        };
        self.0.iter().map(explain).collect()
    }
}

/// Returns whether a request is on a list. An ambiguous request may be rejected, but is not exempt.
fn is_on((kind, list): &(ListKind, Arc<dyn Condition>), head: &RequestHead<'_>) -> bool {
    match kind {
        ListKind::Rejects(_) => list.may_hold(head),
        ListKind::Exempts => list.holds(head),
    }
}

/// The configuration of a layer.
#[derive(Clone)]
pub(super) struct LayerConfig {
    pub(super) engine: Arc<Engine>,
    pub(super) lists: Lists,
    pub(super) cost: CostRule,
    pub(super) headers: Headers,
    pub(super) format: RejectionFormat,
    /// Whether requests carry a [`Permit`](crate::Permit).
    pub(super) permits: bool,
    /// Shared with the route costs of the same limiter, which are layers of their own.
    pub(super) group: Arc<LayerGroup>,
    /// The number of the layer, among those of all limiters.
    pub(super) layer: u64,
    /// The configuration for the current limits, if they can be replaced.
    pub(super) live: Option<Arc<Live<LayerConfig>>>,
}

impl LayerConfig {
    /// Creates the configuration of a limiter's first layer.
    pub(super) fn new(engine: Engine, options: HttpOptions) -> Self {
        let HttpOptions { lists, cost, styles, format, permits } = options;
        Self {
            headers: Headers::new(styles, format.longest_wait(), &engine.limits),
            engine: Arc::new(engine),
            lists,
            cost,
            format,
            permits,
            group: Arc::default(),
            layer: next_layer(),
            live: None,
        }
    }

    /// Returns the configuration of another layer of the same limiter, in which requests have another cost.
    ///
    /// # Errors
    ///
    /// See [`checked`](Self::checked).
    pub(super) fn with_cost(&self, cost: CostRule) -> Result<Arc<Self>, ConfigError> {
        let limits = self.live.as_ref().map(|live| &live.limits);
        let layer = Self { cost, layer: next_layer(), live: None, ..self.clone() }.checked(limits)?;
        self.group.has_several_layers.store(true, Ordering::Relaxed);
        Ok(layer)
    }

    /// Checks the configuration, and derives it from live limits, if there are any.
    ///
    /// # Errors
    ///
    /// An enforced limit could never allow a constant cost, or a path in a cost table does not start with a slash, or
    /// has a query.
    pub(super) fn checked(mut self, limits: Option<&LiveLimits>) -> Result<Arc<Self>, ConfigError> {
        let derive = |config: &Self, limits: &_| {
            let engine = Arc::new(config.engine.with_limits(limits));
            let mut config = Self { engine, live: None, ..config.clone() };
            config.headers.set_limits(&config.engine.limits);
            config.check_cost().map(|()| config)
        };
        match limits {
            Some(limits) => self.live = Some(limits.derive(&self, derive)?),
            None => self.check_cost()?,
        }
        Ok(Arc::new(self))
    }

    fn check_cost(&self) -> Result<(), ConfigError> {
        self.cost.validate()?;
        self.cost.largest().map_or(Ok(()), |largest| self.engine.limits.check_cost(largest))
    }

    /// Returns the configuration for a new request, which keeps it to its end.
    #[inline]
    pub(super) fn current(self: &Arc<Self>) -> Arc<Self> {
        match &self.live {
            None => self.clone(),
            Some(live) => live.current(),
        }
    }

    /// Records the rejection of a request, and returns the response to it, without the headers that report limits.
    pub(super) fn reject(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) -> Response<Bytes> {
        let rejection = self.engine.reject(reason, denied, self.format.wait(&reason), head);
        self.format.response(&rejection, &self.headers)
    }

    /// Returns whether a request that is forwarded may be charged more or less later, so that its charges are recorded.
    pub(super) fn needs_ledger(&self) -> bool {
        self.permits || self.group.has_several_layers() || self.engine.limits.settles_by_response
    }

    /// Reports the lists that a request is on, unless an outer layer of the same limiter has.
    #[cold]
    pub(super) fn report_lists(&self, matched: &[ListAction], extensions: &mut Extensions) {
        if self.group.has_several_layers() {
            let ListReporters(reporters) = extensions.get_or_insert_default();
            match reporters.iter().find(|(group, _)| Arc::ptr_eq(group, &self.group)) {
                Some((_, layer)) if *layer != self.layer => return,
                // Another request with the extensions of one that this layer has reported.
                Some(_) => {}
                None => reporters.push((self.group.clone(), self.layer)),
            }
        }
        matched.iter().for_each(|&action| self.engine.report_event(&Event::ListMatched { action }));
    }

    /// Logs once that a request has passed the layer twice. Only the limiter's first requests are examined.
    #[inline]
    pub(super) fn report_repeated_layer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.group.marked.load(Ordering::Relaxed) < MARKED_REQUESTS
            && self.group.mark(self.layer, extensions)
            && !self.group.repeats_layer.swap(true, Ordering::Relaxed)
        {
            // Merging the headers would report this once more.
            self.headers.repeats_name.store(true, Ordering::Relaxed);
            #[cfg(feature = "tracing")]
            tracing::warn!(
                limit = self.current().engine.limits.first().map_or("", Limit::name),
                "a request passed the same layer twice, and was charged twice: apply the layer once, to a router or \
                 to its routes. For a route that costs something else, use `layer.cost(…)`. If a handler sends \
                 requests to its own service, it must not copy the extensions of the request it handles",
            );
        }
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The state that the layers of one limiter share.
#[derive(Debug, Default)]
pub(super) struct LayerGroup {
    /// Whether a request may pass several layers of the group, which charge it differently: from the first route cost
    /// on, even if no service is created from it.
    has_several_layers: AtomicBool,
    /// The number of requests that were marked with the layers that they pass.
    marked: AtomicUsize,
    /// Whether this was logged: each once for each limiter.
    repeats_layer: AtomicBool,
    pub(super) lacks_address: AtomicBool,
    pub(super) lacks_client: AtomicBool,
    pub(super) lacks_extension: AtomicBool,
}

/// Returns the number of a new layer.
fn next_layer() -> u64 {
    static LAYERS: AtomicU64 = AtomicU64::new(0);
    LAYERS.fetch_add(1, Ordering::Relaxed)
}

/// The layers that a request has passed, among its extensions.
#[derive(Clone, Default)]
struct PassedLayers(SmallVec<[u64; 2]>);

/// The layers that have reported the lists that a request is on, at most one of each limiter, among its extensions.
#[derive(Clone, Default)]
struct ListReporters(SmallVec<[(Arc<LayerGroup>, u64); 1]>);

/// The number of requests of a limiter that are marked to detect layers that are applied twice. Later requests are not
/// marked, because a mark costs up to two allocations.
const MARKED_REQUESTS: usize = 64;

impl LayerGroup {
    /// Returns whether a request may pass several layers of the group, which charge it differently.
    pub(super) fn has_several_layers(&self) -> bool {
        self.has_several_layers.load(Ordering::Relaxed)
    }

    /// Marks one of the first requests as having passed `layer`. Returns whether it has passed `layer` before.
    #[cold]
    fn mark(&self, layer: u64, extensions: &mut Extensions) -> bool {
        let PassedLayers(passed) = extensions.get_or_insert_default();
        if passed.is_empty() {
            self.marked.fetch_add(1, Ordering::Relaxed);
        }
        let is_repeated = passed.contains(&layer);
        if !is_repeated {
            passed.push(layer);
        }
        is_repeated
    }
}
