//! What the layer allocates for a request, beyond what a service would that makes the same response
//! by itself. The keys have been seen before: the store's table has grown by then.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Empty;
use tower::util::MapRequestLayer;
use tower::{Layer, Service};
use tower_ratelimit::key::{PeerAddr, TrustedProxies};
use tower_ratelimit::{
    AddressList, Builder, CostTable, FixedWindow, HeaderStyle, HttpOptions, KeyList, Limit, LiveLimits, Penalty,
    RateLimitLayer, Reset, TokenBucket, key,
};

/// The system's allocator, which counts the calls of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: all is left to the system's allocator; counting touches nothing but a thread's own number.
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

/// Answers with these headers.
#[derive(Clone, Default)]
struct Answering(HeaderMap);

impl Service<Request<()>> for Answering {
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

/// Answers a request without a runtime, and counts what is allocated from the call to the response.
fn answer<S, Q, B>(service: &mut S, request: Request<Q>) -> (usize, Response<B>)
where
    S: Service<Request<Q>, Response = Response<B>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    let before = COUNT.get();
    assert!(service.poll_ready(&mut context).is_ready());
    let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut context) else {
        panic!("it is answered at once")
    };
    (COUNT.get() - before, response)
}

/// The same headers, whose values are copied without an allocation.
fn constant(headers: &HeaderMap) -> HeaderMap {
    let constant = |value: &HeaderValue| HeaderValue::from_static(value.to_str().unwrap().to_owned().leak());
    headers.iter().map(|(name, value)| (name.clone(), constant(value))).collect()
}

/// What the layer allocates for the `nth` request of many, and what is answered.
fn allocated(layer: &RateLimitLayer, nth: usize) -> (usize, StatusCode) {
    let mut service = layer.layer(Answering::default());
    for _ in 1..nth {
        answer(&mut service, request());
    }
    let (all, response) = answer(&mut service, request());
    let (head, _) = response.into_parts();
    let (same, _) = answer(&mut Answering(constant(&head.headers)), request());
    (all - same, head.status)
}

/// The request that is looked at: one that is allowed, and one that is denied.
const ALLOWED: usize = 100;
const DENIED: usize = 1_100;

/// `RateLimit`; `RateLimit-Policy` was written before.
const DRAFT: usize = 1;
/// What is left and the reset together; the limit was written before.
const TRIPLE: usize = 1;
/// The text, and `Retry-After`, which is long here.
const REFUSAL: usize = 2;
/// Axum's, around a body that is none of its own.
const BOX: usize = 1;
/// The note itself, and its place among the request's extensions.
const NOTE: usize = 2;

fn layer(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
    RateLimitLayer::builder(limits)
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

/// The outcomes of several limits: those of one limit need no allocation.
const SEVERAL: usize = 1;

/// Whoever counts nothing finds nothing.
#[test]
fn the_counter_counts() {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(1)));
    drop(std::hint::black_box(Vec::<u8>::with_capacity(9)));
    assert_eq!(COUNT.get() - before, 2);
}

#[test]
fn nothing_without_headers() {
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
        allocates(what, &none(vec![limit("a").by(key::client_ip(address))]), ALLOWED, 0);
    }
    allocates("at another cost", &none(vec![bucket("a").cost(2)]), ALLOWED, 0);
}

/// What was made of rules is made once for each switch.
#[test]
fn nothing_where_limits_can_be_replaced() {
    let rules = LiveLimits::new([limit("a").by(key::peer_ip()), bucket("b")]);
    let live = RateLimitLayer::live_builder(&rules).headers([]).build();
    allocates("live rules", &live, ALLOWED, SEVERAL);
    rules.replace([limit("a").by(key::header("x-api-key")), bucket("c")]).unwrap();
    allocates("live rules, replaced", &live, ALLOWED, SEVERAL);
}

#[test]
fn nothing_where_lists_are_asked() {
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

/// Neither until there is a strike, nor for one.
#[test]
fn nothing_for_a_penalty() {
    let day = Duration::from_secs(86_400);
    let penalised = || layer([limit("a").by(key::peer_ip()).penalty(Penalty::after(50, day))]).headers([]).build();
    allocates("with a penalty", &penalised(), ALLOWED, 0);
    allocates("denied, and refused by it", &penalised(), DENIED, REFUSAL);
}

/// Not even where a window begins, which takes the rules of its zone.
#[test]
fn nothing_where_windows_are_a_calendars() {
    use tower_ratelimit::{CalendarWindow, Limiter, ManualClock, MemoryStore, Timestamp};

    let berlin = || CalendarWindow::monthly(1_000).from_day(15).in_zone("Europe/Berlin");
    let limits = || layer([Limit::new("a", berlin())]);
    allocates("by a calendar", &limits().headers([]).build(), ALLOWED, 0);
    // How long the present window is, each response is told anew.
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

/// Of limits that keys may have another size of, while others have one, and none.
#[test]
fn nothing_where_a_key_has_no_override() {
    let open = |limits: Vec<Limit>| layer(limits.into_iter().map(Limit::overridable)).headers([]).build();
    let by_header = || limit("a").by(key::header("x-api-key"));
    allocates("overridable", &open(vec![by_header()]), ALLOWED, 0);
    allocates("overridable, two limits", &open(vec![by_header(), bucket("b").by(key::peer_ip())]), ALLOWED, SEVERAL);
    let others = open(vec![by_header()]);
    let overrides = others.overrides("a").unwrap();
    for other in 0..100_u64 {
        let mut setting = pin!(overrides.set(other, FixedWindow::per_day(9), None));
        assert!(setting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    allocates("overridable, others overridden", &others, ALLOWED, 0);
}

/// Values are compared where they were written.
#[test]
fn nothing_where_limits_come_from_a_file() {
    use tower_ratelimit::rules::{Extractors, Rules};

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
    let limits = Rules::from_yaml(yaml).unwrap().limits(&Extractors::new()).unwrap();
    assert_eq!(limits.len(), 4);
    allocates("rules", &layer(limits).headers([]).build(), ALLOWED, SEVERAL);
}

#[test]
fn little_with_headers() {
    let by_peer = || layer([limit("a").by(key::peer_ip())]);
    let two = || layer([limit("a").by(key::peer_ip()), bucket("b")]);
    let triple = [HeaderStyle::XRateLimit(Reset::Seconds)];
    allocates("draft, one limit", &by_peer().build(), ALLOWED, DRAFT);
    allocates("draft, two limits", &two().build(), ALLOWED, DRAFT + SEVERAL);
    allocates("triple", &two().headers(triple).build(), ALLOWED, TRIPLE + SEVERAL);
    let many = || layer([Limit::new("a", FixedWindow::per_day(1_000_000))]);
    allocates("triple of large numbers", &many().headers(triple).build(), ALLOWED, TRIPLE);
    allocates("denied, untold", &by_peer().headers([]).build(), DENIED, REFUSAL);
    allocates("denied, draft", &by_peer().build(), DENIED, REFUSAL + DRAFT);
    allocates("denied, triple", &by_peer().headers(triple).build(), DENIED, REFUSAL + TRIPLE);
    allocates("denied by two, draft", &layer([limit("a"), limit("b")]).build(), DENIED, REFUSAL + DRAFT + SEVERAL);
    allocates("denied, problem+json", &by_peer().headers([]).problem_json().build(), DENIED, REFUSAL);
    let soon = layer([Limit::new("a", TokenBucket::new(1_000, 1, Duration::from_secs(60)))]).build();
    allocates("denied for a while, draft", &soon, DENIED, REFUSAL - 1 + DRAFT);
}

/// What a request takes of a router that is served, for the `nth` request of many.
fn routed(app: Router, nth: usize) -> (usize, StatusCode) {
    let mut app: Router = app.with_state(());
    let request = || request().map(|()| axum::body::Body::empty());
    let mut answer = || {
        let (request, mut context) = (request(), Context::from_waker(Waker::noop()));
        let before = COUNT.get();
        let Poll::Ready(Ok(response)) = pin!(app.call(request)).poll(&mut context) else {
            panic!("it is answered at once")
        };
        let status = response.status();
        drop(response);
        (COUNT.get() - before, status)
    };
    (1..nth).for_each(|_| assert!(answer().0 > 0));
    answer()
}

/// Axum clones what a layer has made and boxes its future, as it does for one that does nothing.
#[test]
fn nothing_more_on_a_router_whose_bodies_are_kept() {
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
        ("kept, told", app().layer(limits().build().keep_body()), DRAFT),
        ("wrapped", app().layer(limits().headers([]).build()), BOX),
        ("wrapped, told", app().layer(limits().build()), BOX + DRAFT),
    ] {
        let (measured, status) = routed(app, ALLOWED);
        assert_eq!((measured - empty, status), (more, StatusCode::OK), "{what}");
    }
    // Whoever is denied spares it the handler, and its headers; any body that Axum did not make is boxed.
    for (what, app, more) in [
        ("denied, kept", app().layer(limits().build().keep_body()), BOX),
        ("denied, wrapped", app().layer(limits().build()), BOX),
        ("denied, problem+json", app().layer(limits().problem_json().build()), BOX),
    ] {
        let (measured, status) = routed(app, DENIED);
        assert_eq!((measured - empty, status), (more, StatusCode::TOO_MANY_REQUESTS), "{what}");
    }
}

/// Recorders receive references, and keep their own counts.
#[test]
fn nothing_where_decisions_are_recorded() {
    use tower_ratelimit::{DecisionRecord, LimitOutcome, MetricsRecorder, Recorder, Stats, TraceRecorder};

    struct Denied(std::sync::atomic::AtomicU64);
    impl Recorder for Denied {
        fn decision(&self, decision: &DecisionRecord<'_>) {
            let denied = decision.limits().filter(|limit| limit.outcome() == LimitOutcome::Denied).count();
            self.0.fetch_add(denied as u64, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let by_peer = || layer([limit("a").by(key::peer_ip())]).headers([]);
    allocates("own recorder", &by_peer().recorder(Denied(0.into())).build(), ALLOWED, 0);
    allocates("stats", &by_peer().recorder(Stats::new().top_keys(10)).build(), ALLOWED, 0);
    allocates("stats, denied", &by_peer().recorder(Stats::new().top_keys(10)).build(), DENIED, REFUSAL);
    allocates("metrics", &by_peer().recorder(MetricsRecorder::new()).build(), ALLOWED, 0);
    allocates("metrics, denied", &by_peer().recorder(MetricsRecorder::new()).build(), DENIED, REFUSAL);
    allocates("spans", &by_peer().recorder(TraceRecorder::new()).build(), ALLOWED, 0);
    allocates("spans, denied", &by_peer().recorder(TraceRecorder::new()).build(), DENIED, REFUSAL);
}

/// A route whose cost is its own: a note of what was charged goes with the request.
#[test]
fn some_where_routes_have_costs() {
    let limits = layer([limit("a").by(key::peer_ip())]).headers([]).build();
    let _elsewhere = limits.cost(2).layer(());
    allocates("beside a route with a cost", &limits, ALLOWED, NOTE);
    let by_table = layer([limit("a").by(key::peer_ip())]).headers([]).costs(CostTable::new().path("/", 2)).build();
    allocates("with a table of costs", &by_table, ALLOWED, 0);
}

/// What may still be given back is noted in the same way.
#[test]
fn some_where_handlers_or_responses_have_a_say() {
    let permits = layer([limit("a").by(key::peer_ip())]).headers([]).permits().build();
    allocates("with a permit", &permits, ALLOWED, NOTE);
    let counts = layer([limit("a").by(key::peer_ip()).count_if(|_| true)]).headers([]).build();
    allocates("with a look at the response, which counts", &counts, ALLOWED, NOTE + 1);
}
