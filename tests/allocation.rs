//! Allocations of the layer for a request, in addition to those of a service that creates the same response by itself.
//! The keys are known to the store, so its table does not grow.
#![allow(unsafe_code, reason = "implementing an allocator is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::Empty;
use support::faulty_store::{FaultyStore, Mode};
use tower::util::{MapRequestLayer, service_fn};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::key::{PeerAddr, TrustedProxies};
use tower_ratelimit::store::Remembering;
use tower_ratelimit::{
    AddressList, Builder, CostTable, FixedWindow, HeaderStyle, HttpOptions, KeyList, Limit, Limiter, ListAction,
    LiveLimits, ManualClock, MemoryStore, Penalty, RateLimitLayer, ResetFormat, Timestamp, TokenBucket, key, when,
};

/// The system allocator, with a count of the calls of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: all calls are forwarded to the system allocator, and counting only changes a thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A service that responds with these headers.
#[derive(Clone, Default)]
struct Hello(HeaderMap);

impl Service<Request<()>> for Hello {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Empty::new());
        for (name, value) in &self.0 {
            response.headers_mut().append(name, value.clone());
        }
        ready(Ok(response))
    }
}

fn request() -> Request<()> {
    let request = Request::get("/").header("x-api-key", "a-key-of-32-characters-0123456789");
    let request = request.header("x-forwarded-for", "203.0.113.9, 198.51.100.1:4711, [fd00::1]:80");
    let request = request.header("x-forwarded-for", "10.0.0.7").header("x-real-ip", "198.51.100.1");
    let request =
        request.header("forwarded", r#"for="203.0.113.9, for="\[2001:db8::1]:80";host="a, \"b\"", for=10.0.0.7"#);
    let mut request = request.body(()).unwrap();
    request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 1], 50_000))));
    request
}

/// Calls a service without a runtime. Returns the number of allocations until its response.
fn call<S, Q, B>(service: &mut S, request: Request<Q>) -> (usize, Response<B>)
where
    S: Service<Request<Q>, Response = Response<B>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    let before = COUNT.get();
    assert!(service.poll_ready(&mut context).is_ready());
    let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut context) else {
        panic!("the service is not immediately ready")
    };
    (COUNT.get() - before, response)
}

/// Returns the same headers, with values that can be cloned without allocation.
fn constant(headers: &HeaderMap) -> HeaderMap {
    let constant = |value: &HeaderValue| HeaderValue::from_static(value.to_str().unwrap().to_owned().leak());
    headers.iter().map(|(name, value)| (name.clone(), constant(value))).collect()
}

/// Returns the number of allocations of the layer for the `nth` request, and the status of its response.
fn allocated(layer: &RateLimitLayer, nth: usize) -> (usize, StatusCode) {
    let mut service = layer.layer(Hello::default());
    for _ in 1..nth {
        call(&mut service, request());
    }
    let (all, response) = call(&mut service, request());
    let (head, _) = response.into_parts();
    let (same, _) = call(&mut Hello(constant(&head.headers)), request());
    (all - same, head.status)
}

/// The number of a request that is allowed, and of one that is denied.
const ALLOWED: usize = 100;
const DENIED: usize = 1_100;

/// The header `RateLimit`. `RateLimit-Policy` is prepared when the layer is built.
const DRAFT: usize = 1;
/// The remaining tokens and the reset. The limit is prepared when the layer is built.
const TRIPLE: usize = 2;
/// The body and `Retry-After`.
const REJECTION: usize = 2;
/// Axum boxes bodies of other types than its own.
const BOX: usize = 1;
/// The ledger of the request's charges, and its entry in the request's extensions.
const LEDGER: usize = 2;

/// Builds a layer whose clock stands still, so that no window ends during a test.
fn layer(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    RateLimitLayer::builder(limits).store(MemoryStore::new().clock(clock))
}

fn limit(name: &str) -> Limit {
    Limit::new(name, FixedWindow::per_day(1_000))
}

fn bucket(name: &str) -> Limit {
    Limit::new(name, TokenBucket::per_day(1_000))
}

#[track_caller]
fn allocates(what: &str, layer: &RateLimitLayer, nth: usize, expected: usize) {
    let (measured, status) = allocated(layer, nth);
    println!("{measured:>2} {what}");
    assert_eq!(status.is_success(), nth == ALLOWED, "{what}");
    assert!(measured <= expected, "{what}: {measured} allocations, not {expected}");
}

/// The list of outcomes of several limits. The outcome of one limit needs no allocation.
const SEVERAL: usize = 1;

/// Without counting, all other tests would pass.
#[test]
fn allocations_are_counted() {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(1)));
    drop(std::hint::black_box(Vec::<u8>::with_capacity(9)));
    assert_eq!(COUNT.get() - before, 2);
}

#[test]
fn requests_without_headers_do_not_allocate() {
    let none = |limits: Vec<Limit>| layer(limits).headers([]).build();
    allocates("global", &none(vec![limit("a")]), ALLOWED, 0);
    allocates("by peer", &none(vec![limit("a").by(key::peer_ip())]), ALLOWED, 0);
    allocates("by header", &none(vec![limit("a").by(key::header("x-api-key"))]), ALLOWED, 0);
    let two = vec![limit("a").by(key::peer_ip()), bucket("b").by(key::header("x-api-key"))];
    allocates("two limits", &none(two), ALLOWED, SEVERAL);
    allocates("eight limits", &none((0..8).map(|n| bucket(&n.to_string())).collect()), ALLOWED, SEVERAL);
    let either = {
        use key::KeyExtractor;
        bucket("a").by(key::header("x-user").or((key::peer_ip(), key::path(), key::method())))
    };
    allocates("either of two keys", &none(vec![either]), ALLOWED, 0);
    let proxies = || TrustedProxies::cidrs(["192.0.2.0/24", "10.0.0.0/8", "fd00::/8"]);
    for (what, address) in [
        ("by client, X-Forwarded-For", proxies().x_forwarded_for()),
        ("by client, Forwarded", proxies().forwarded()),
        ("by client, single value", proxies().single_valued("x-real-ip")),
        ("by client, hops", TrustedProxies::hops(2).forwarded()),
    ] {
        allocates(what, &none(vec![limit("a").by(address)]), ALLOWED, 0);
    }
    allocates("at another cost", &none(vec![bucket("a").cost(2)]), ALLOWED, 0);
}

#[test]
fn live_limits_do_not_allocate() {
    let rules = LiveLimits::new([limit("a").by(key::peer_ip()), bucket("b")]);
    let live = RateLimitLayer::live_builder(&rules).headers([]).build();
    allocates("live rules", &live, ALLOWED, SEVERAL);
    rules.replace([limit("a").by(key::header("x-api-key")), bucket("c")]).unwrap();
    allocates("live rules, replaced", &live, ALLOWED, SEVERAL);
}

#[test]
fn lists_do_not_allocate() {
    let other = AddressList::new(TrustedProxies::hops(1).x_forwarded_for(), ["198.51.100.9"]);
    let layer = layer([limit("a").by(key::peer_ip())]).headers([]).always_reject(other);
    let listed = KeyList::new(key::header("x-api-key"), ["a-key-of-32-characters-0123456789"]);
    allocates(
        "on no list",
        &layer.clone().never_limit(AddressList::new(key::peer_ip(), ["10.0.0.0/8"])).build(),
        ALLOWED,
        0,
    );
    allocates("never limited", &layer.never_limit(listed).build(), ALLOWED, 0);
}

/// The penalties of a request are in a list of their own.
#[test]
fn a_penalty_allocates_as_another_limit_does() {
    let day = Duration::from_secs(86_400);
    let with_penalty = || layer([limit("a").by(key::peer_ip()).penalty(Penalty::after(50, day))]).headers([]).build();
    allocates("with a penalty", &with_penalty(), ALLOWED, SEVERAL);
    allocates("locked out", &with_penalty(), DENIED, REJECTION + SEVERAL);
}

/// Includes the start of a window, which needs the rules of its time zone.
#[test]
fn calendar_windows_do_not_allocate() {
    use tower_ratelimit::CalendarWindow;

    let berlin = || CalendarWindow::monthly(1_000).from_day(15).in_zone("Europe/Berlin");
    let limits = || layer([Limit::new("a", berlin())]);
    allocates("by a calendar", &limits().headers([]).build(), ALLOWED, 0);
    // The length of the current window is written to each response.
    allocates("by a calendar, draft", &limits().build(), ALLOWED, DRAFT + 1);

    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    let limiter = Limiter::builder([Limit::new("a", berlin())]).store(MemoryStore::new().clock(clock.clone())).build();
    let decide = || limiter.acquire("key", 600).into_ready().unwrap().unwrap().is_allowed();
    assert!(decide());
    let before = COUNT.get();
    for _ in 0..500 {
        assert!(!decide());
        clock.advance(std::time::Duration::from_secs(31 * 86_400));
        assert!(decide());
    }
    assert_eq!(COUNT.get(), before);
}

/// Calls of this store are not ready at once, so all requests after the first ones are decided by a lease.
#[test]
fn decisions_by_a_lease_do_not_allocate() {
    let leased = || [bucket("a").leased(Duration::from_secs(60))];
    let store = || Remembering::new(FaultyStore::new(Mode::Works));
    let layer = RateLimitLayer::builder(leased()).store(store()).headers([]).build();
    let limiter = Limiter::builder(leased()).store(store()).build();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        // A block is as large as the demand before it: the last one has 127 tokens.
        for _ in 0..128 {
            layer.layer(Hello::default()).oneshot(request()).await.unwrap();
            assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
        }
    });
    allocates("by a lease", &layer, ALLOWED, 0);
    let before = COUNT.get();
    for _ in 0..100 {
        assert!(limiter.acquire("key", 1).into_ready().unwrap().unwrap().is_allowed());
    }
    assert_eq!(COUNT.get(), before);
}

#[test]
fn keys_without_an_override_do_not_allocate() {
    let overridable = |limits: Vec<Limit>| layer(limits.into_iter().map(Limit::overridable)).headers([]).build();
    let by_header = || limit("a").by(key::header("x-api-key"));
    allocates("overridable", &overridable(vec![by_header()]), ALLOWED, 0);
    allocates(
        "overridable, two limits",
        &overridable(vec![by_header(), bucket("b").by(key::peer_ip())]),
        ALLOWED,
        SEVERAL,
    );
    let others = overridable(vec![by_header()]);
    let overrides = others.limit("a").unwrap();
    for other in 0..100_u64 {
        let mut setting = pin!(overrides.set_override(other, FixedWindow::per_day(9), None));
        assert!(setting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    allocates("overridable, others overridden", &others, ALLOWED, 0);
}

#[test]
fn limits_from_a_file_do_not_allocate() {
    use tower_ratelimit::rules::{self, Extractors};

    let yaml = "
domain: shop
descriptors:
- key: header.x-api-key
  rate_limit: { name: keys, unit: day, requests_per_unit: 1000 }
- key: header.x-api-key
  value: another
  rate_limit: { unit: day, requests_per_unit: 0, replaces: [{ name: keys }] }
- key: remote_address
  value: 192.*
  descriptors:
  - { key: method, rate_limit: { unit: day, requests_per_unit: 1000, key: [remote_address, header.x-api-key] } }
- { key: query.page, rate_limit: { unit: day, requests_per_unit: 1000 } }
";
    let limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    assert_eq!(limits.len(), 4);
    allocates("rules", &layer(limits).headers([]).build(), ALLOWED, SEVERAL);
}

/// Recorders keep counts for each limit, and add those of a limit at its first request.
#[test]
fn the_first_request_under_a_limit_does_not_copy_the_counts_of_others() {
    use tower_ratelimit::{DecisionRecord, MetricsRecorder, Recorder, Stats};

    /// Counts the allocations of another recorder for the last decision.
    struct Measured<R>(R, AtomicUsize);

    impl<R: Recorder> Recorder for Measured<R> {
        fn decision(&self, decision: &DecisionRecord<'_>) {
            let before = COUNT.get();
            self.0.decision(decision);
            self.1.store(COUNT.get() - before, Ordering::Relaxed);
        }
    }

    fn first_request(recorder: impl Recorder) -> usize {
        let measured = Arc::new(Measured(recorder, AtomicUsize::new(0)));
        let limits = LiveLimits::new([limit("first")]);
        let layer = RateLimitLayer::live_builder(&limits).recorder(measured.clone()).build();
        for number in 0..1_000 {
            limits.replace([limit(&number.to_string())]).unwrap();
            allocated(&layer, 1);
        }
        measured.1.load(Ordering::Relaxed)
    }
    // The name of the limit, the counts, and for metrics their labels.
    for (most, allocations) in [(2, first_request(Stats::new())), (20, first_request(MetricsRecorder::new()))] {
        println!("{allocations} of {most}");
        assert!(allocations <= most, "{allocations} allocations, not {most}");
    }
}

#[test]
fn headers_allocate_little() {
    let by_peer = || layer([limit("a").by(key::peer_ip())]);
    let two = || layer([limit("a").by(key::peer_ip()), bucket("b")]);
    let triple = [HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    allocates("draft, one limit", &by_peer().build(), ALLOWED, DRAFT);
    allocates("draft, two limits", &two().build(), ALLOWED, DRAFT + SEVERAL);
    allocates("triple", &two().headers(triple).build(), ALLOWED, TRIPLE + SEVERAL);
    let many = || layer([Limit::new("a", FixedWindow::per_day(1_000_000))]);
    allocates("triple of large numbers", &many().headers(triple).build(), ALLOWED, TRIPLE);
    allocates("denied, no headers", &by_peer().headers([]).build(), DENIED, REJECTION);
    allocates("denied, draft", &by_peer().build(), DENIED, REJECTION + DRAFT);
    allocates("denied, triple", &by_peer().headers(triple).build(), DENIED, REJECTION + TRIPLE);
    allocates("denied by two, draft", &layer([limit("a"), limit("b")]).build(), DENIED, REJECTION + DRAFT + SEVERAL);
    allocates("denied, problem+json", &by_peer().headers([]).problem_json().build(), DENIED, REJECTION);
}

/// Returns the number of allocations of a router for the `nth` request, and the status of its response.
fn routed(app: Router, nth: usize) -> (usize, StatusCode) {
    let mut app: Router = app.with_state(());
    let request = || request().map(|()| axum::body::Body::empty());
    let mut call = || {
        let (request, mut context) = (request(), Context::from_waker(Waker::noop()));
        let before = COUNT.get();
        let Poll::Ready(Ok(response)) = pin!(app.call(request)).poll(&mut context) else {
            panic!("the service is not immediately ready")
        };
        let status = response.status();
        drop(response);
        (COUNT.get() - before, status)
    };
    (1..nth).for_each(|_| assert!(call().0 > 0));
    call()
}

/// Compared with a layer that does nothing: for each layer, Axum clones the service and boxes its future.
#[test]
fn kept_bodies_on_a_router_do_not_allocate() {
    let app = || Router::new().route("/", get(async || "hello"));
    let shared = Arc::new(());
    let nothing = MapRequestLayer::new(move |request: axum::extract::Request| {
        std::hint::black_box(&shared);
        request
    });
    let (empty, status) = routed(app().layer(nothing), ALLOWED);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(empty - routed(app(), ALLOWED).0, 2);
    let limits = || layer([limit("a").by(key::peer_ip())]);
    let two = || layer([limit("a").by(key::peer_ip()), bucket("b").by(key::header("x-api-key"))]);
    for (what, app, more) in [
        ("kept", app().layer(limits().headers([]).build().keep_body()), 0),
        ("kept, two limits", app().layer(two().headers([]).build().keep_body()), SEVERAL),
        ("kept, with headers", app().layer(limits().build().keep_body()), DRAFT),
        ("wrapped", app().layer(limits().headers([]).build()), BOX),
        ("wrapped, with headers", app().layer(limits().build()), BOX + DRAFT),
    ] {
        let (measured, status) = routed(app, ALLOWED);
        assert_eq!((measured - empty, status), (more, StatusCode::OK), "{what}");
    }
    // A denied request does not reach the handler, which saves as many allocations as the headers need. The body of the
    // rejection is boxed.
    for (what, app, more) in [
        ("denied, kept", app().layer(limits().build().keep_body()), BOX),
        ("denied, wrapped", app().layer(limits().build()), BOX),
        ("denied, problem+json", app().layer(limits().problem_json().build()), BOX),
    ] {
        let (measured, status) = routed(app, DENIED);
        assert_eq!((measured - empty, status), (more, StatusCode::TOO_MANY_REQUESTS), "{what}");
    }
}

#[test]
fn recorders_do_not_allocate() {
    use tower_ratelimit::{DecisionRecord, MetricsRecorder, OutcomeKind, Recorder, Stats, TraceRecorder};

    struct Denied(std::sync::atomic::AtomicU64);
    impl Recorder for Denied {
        fn decision(&self, decision: &DecisionRecord<'_>) {
            let denied = decision.limits().filter(|limit| limit.outcome.kind() == OutcomeKind::Denied).count();
            self.0.fetch_add(denied as u64, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let by_peer = || layer([limit("a").by(key::peer_ip())]).headers([]);
    allocates("own recorder", &by_peer().recorder(Denied(0.into())).build(), ALLOWED, 0);
    allocates("stats", &by_peer().recorder(Stats::new().top_keys(10)).build(), ALLOWED, 0);
    allocates("stats, denied", &by_peer().recorder(Stats::new().top_keys(10)).build(), DENIED, REJECTION);
    allocates("metrics", &by_peer().recorder(MetricsRecorder::new()).build(), ALLOWED, 0);
    allocates("metrics, denied", &by_peer().recorder(MetricsRecorder::new()).build(), DENIED, REJECTION);
    allocates("spans", &by_peer().recorder(TraceRecorder::new()).build(), ALLOWED, 0);
    allocates("spans, denied", &by_peer().recorder(TraceRecorder::new()).build(), DENIED, REJECTION);
    let listed = || by_peer().always_reject_with(ListAction::Shadow, when::method(Method::GET));
    allocates("metrics, listed", &listed().recorder(MetricsRecorder::new()).build(), ALLOWED, 0);
}

/// The cost of a route is charged by another service, which needs to know the earlier charges.
#[test]
fn route_costs_allocate_a_ledger() {
    let limits = layer([limit("a").by(key::peer_ip())]).headers([]).build();
    let _route = limits.cost(2).layer(());
    allocates("with a route that has a cost", &limits, ALLOWED, LEDGER);
    let by_table = layer([limit("a").by(key::peer_ip())]).headers([]).costs(CostTable::new().path("/", 2)).build();
    allocates("with a table of costs", &by_table, ALLOWED, 0);
    let mut service = by_table.layer(Hello::default());
    for _ in 1..ALLOWED {
        call(&mut service, request());
    }
    let mut extended = request();
    *extended.method_mut() = Method::from_bytes(b"VERSION-CONTROL-REPORT").unwrap();
    assert_eq!(call(&mut service, extended).0, 0, "with a table of costs, by a long method");
}

#[test]
fn permits_and_refunds_allocate_a_ledger() {
    let permits = layer([limit("a").by(key::peer_ip())]).headers([]).permits().build();
    allocates("with a permit", &permits, ALLOWED, LEDGER);
    let counts = layer([limit("a").by(key::peer_ip()).count_if(|_| true)]).headers([]).build();
    allocates("with `count_if`", &counts, ALLOWED, LEDGER + 1);
}

/// The list of outcomes, and the slots, which the body of the response shares with the request's ledger. Their release
/// allocates nothing.
#[test]
fn a_slot_allocates_twice() {
    const SLOTS: usize = 1;
    let streams = || Limit::concurrent("streams", 9).by(key::header("x-api-key"));
    let rate = || bucket("a").by(key::header("x-api-key"));
    allocates("a rate", &layer([rate()]).headers([]).build(), ALLOWED, 0);
    let limits = layer([rate(), streams()]).headers([]).build();
    allocates("a rate and a slot", &limits, ALLOWED, SEVERAL + SLOTS);
    let mut service = limits.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Frames(1))))));
    for _ in 0..ALLOWED {
        let response = call(&mut service, request()).1;
        let before = COUNT.get();
        drop(response);
        assert_eq!(COUNT.get(), before);
    }
    let other = layer([rate(), streams().until_head()]).headers([]).build();
    allocates("a rate and a slot until the head", &other, ALLOWED, SEVERAL + SLOTS);
    // For requests to which the concurrency limit does not apply.
    let unmet = streams().when(when::method(Method::PUT));
    allocates("a rate without a slot", &layer([rate(), unmet]).headers([]).build(), ALLOWED, 0);
}

/// A body of frames from static memory.
struct Frames(usize);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let is_over = self.0 == 0;
        self.0 = self.0.saturating_sub(1);
        Poll::Ready((!is_over).then(|| Ok(Frame::data(Bytes::from_static(b"frame")))))
    }
}

#[test]
fn frames_of_a_body_that_is_settled_do_not_allocate() {
    let settled = || layer([limit("a").settle_at_end(|end| (end.frames > 0).then_some(2))]).headers([]).build();
    // What happens at the end.
    allocates("with `settle_at_end`", &settled(), ALLOWED, LEDGER + 1);
    let frames = |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Frames(1_000))));
    let mut service = settled().layer(service_fn(frames));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..ALLOWED {
        let mut body = pin!(call(&mut service, request()).1.into_body());
        let before = COUNT.get();
        for _ in 0..1_000 {
            assert!(matches!(body.as_mut().poll_frame(&mut context), Poll::Ready(Some(Ok(_)))));
        }
        assert_eq!(COUNT.get() - before, 0);
        assert!(matches!(body.as_mut().poll_frame(&mut context), Poll::Ready(None)));
        assert!(COUNT.get() > before);
    }
}
