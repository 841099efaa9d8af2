//! Events and fields that operators see through `tracing`. They are tested in their own process, because `tracing`
//! caches the interest in events globally.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::FutureExt;
use http::{Request, Response};
use support::faulty_store::{FaultyStore, Mode};
use support::split_mix::Random;
use tokio::runtime::Builder;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::{PeerAddr, TrustedProxies, UnixPeer};
use tower_ratelimit::store::{Answer, CasStore, Charges, CompareAndSwap, KeyHasher, Purpose, StoreFuture, Versioned};
use tower_ratelimit::{
    AddressList, CostTable, FixedWindow, HeaderStyle, InFlight, Limit, Limiter, LiveLimits, MemoryStore, OnMissingKey,
    OnStoreError, Penalty, RateLimit, RateLimitLayer, RedisConfig, RequestHead, RequestLimiter, ResetFormat, Share,
    Store, StoreError, TraceRecorder, key,
    rules::{self, Extractors},
    when,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// Collects events and fields recorded in spans, as text. The last span that was opened is the current one.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>, Arc<Mutex<Option<&'static Metadata<'static>>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0 +=
            &format!(" {}={value}: {}", field.name(), value.source().map_or_else(String::new, ToString::to_string));
    }
}

impl Subscriber for Reports {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_ratelimit")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().expect("no thread has panicked").push(text.0);
    }

    fn current_span(&self) -> Current {
        match *self.1.lock().expect("no thread has panicked") {
            Some(metadata) => Current::new(Id::from_u64(1), metadata),
            None => Current::none(),
        }
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        *self.1.lock().expect("no thread has panicked") = Some(attributes.metadata());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, fields: &Record<'_>) {
        let mut text = Text("span".to_owned());
        fields.record(&mut text);
        self.0.lock().expect("no thread has panicked").push(text.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

type Hello = tower::util::ServiceFn<fn(Request<()>) -> Ready<Result<Response<String>, Infallible>>>;

fn hello(_: Request<()>) -> Ready<Result<Response<String>, Infallible>> {
    ready(Ok(Response::new("hello".to_owned())))
}

/// Returns the reports of two requests to each of two services of `layer`.
fn reports_of(layer: &RateLimitLayer) -> Vec<String> {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let runtime = Builder::new_current_thread().build().expect("there is a runtime");
        runtime.block_on(async {
            for _ in 0..2 {
                let mut service = layer.layer(service_fn(hello));
                for _ in 0..2 {
                    let service = service.ready().await.expect("it is always ready");
                    let _ = service.call(Request::new(())).await.expect("it never fails");
                }
            }
        });
    });
    std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"))
}

fn by_peer() -> Limit {
    Limit::new("per-peer", FixedWindow::per_minute(1)).by(key::peer_ip())
}

#[test]
fn a_missing_peer_address_is_reported_once() {
    let reports = reports_of(&RateLimitLayer::new([by_peer()]));
    let [report] = reports.as_slice() else { panic!("there are {} reports: {reports:#?}", reports.len()) };
    assert!(report.starts_with("ERROR message="), "{report}");
    assert!(report.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{report}");
    assert!(report.ends_with("limit=\"per-peer\""), "{report}");
    // A limit that is skipped for all requests is off, possibly by mistake.
    assert_eq!(reports_of(&RateLimitLayer::new([by_peer().on_missing_key(OnMissingKey::Skip)])), reports);
    // A client without a key is not reported.
    let by_user = Limit::new("per-user", FixedWindow::per_minute(1)).by(key::header("x-user"));
    assert_eq!(reports_of(&RateLimitLayer::new([by_user])), [] as [&str; 0]);
}

/// Returns the reports of three equal requests.
fn reports_of_requests(layer: &RateLimitLayer, request: &Request<()>) -> Vec<String> {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        for _ in 0..3 {
            let _ = layer.layer(service_fn(hello)).call(request.clone()).now_or_never().expect("memory is ready");
        }
    });
    std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"))
}

#[test]
fn the_reason_why_a_client_address_is_missing_is_reported_once() {
    let request = |name: &str, value: &str| {
        let mut request = Request::get("/").header(name, value).body(()).expect("a request");
        request.extensions_mut().insert(PeerAddr(([10, 0, 0, 1], 5_000).into()));
        request
    };
    let mut on_unix_socket = Request::new(());
    on_unix_socket.extensions_mut().insert(UnixPeer);
    let hops = || TrustedProxies::hops(2);
    let private = || TrustedProxies::cidrs(["10.0.0.0/8"]);
    let rejected = "a request has no client address";
    for (address, request, words) in [
        (private().x_forwarded_for(), Request::new(()), "into_make_service_with_connect_info"),
        (private().x_forwarded_for(), on_unix_socket, "on a Unix socket, use `trust_unix_peers`"),
        (hops().x_forwarded_for(), request("x-forwarded-for", "192.0.2.1"), "names 1 of the 2 hops"),
        (hops().forwarded(), request("forwarded", "for=192.0.2.1"), "check the number of proxies"),
        (hops().x_forwarded_for(), request("x-forwarded-for", "unknown, 10.0.0.2"), "has no valid address"),
        (hops().forwarded(), request("forwarded", "for=192.0.2.1;;=, for=10.0.0.2"), "and what they write"),
        (private().single_valued("x-real-ip"), request("x-real-ip", "nobody"), "has no valid address"),
        (hops().single_valued("x-real-ip"), request("x-other", "192.0.2.1"), "names 0 of the 1 hops"),
    ] {
        let limit = || Limit::new("clients", FixedWindow::per_minute(9)).by(address.clone());
        let reports = reports_of_requests(&RateLimitLayer::new([limit()]), &request);
        let [report] = reports.as_slice() else { panic!("{words}: {reports:#?}") };
        assert!(report.starts_with("ERROR message=") && report.contains("limit=\"clients\""), "{report}");
        assert!(report.contains(words), "{words}: {report}");
        // Requests without an address are expected under another policy, unless the server never provides one.
        let skip = RateLimitLayer::new([limit().on_missing_key(OnMissingKey::Skip)]);
        let expected = usize::from(!report.contains(rejected));
        assert_eq!(reports_of_requests(&skip, &request).len(), expected, "{words}");
    }
}

/// Sends a request through a layer for each event, as to a collector of logs.
struct Collector(RateLimitLayer);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_ratelimit")
    }

    fn event(&self, _: &Event<'_>) {
        let _ = self.0.layer(service_fn(hello)).call(Request::new(())).now_or_never();
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_request_that_a_report_causes_does_not_wait_for_the_report() {
    let layer = RateLimitLayer::new([by_peer()]);
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tracing::subscriber::with_default(Collector(layer.clone()), || {
            let response = layer.layer(service_fn(hello)).call(Request::new(())).now_or_never();
            done.send(response.is_some()).expect("the test is waiting");
        });
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(true));
}

#[test]
fn a_bad_body_of_a_rejection_is_reported_once() {
    let limit = Limit::new("one", FixedWindow::per_minute(1));
    let endless = || axum::body::Body::from_stream(futures_util::stream::pending::<Result<String, Infallible>>());
    let reports = reports_of(&RateLimitLayer::builder([limit]).on_reject(move |_| Response::new(endless())).build());
    let [report] = reports.as_slice() else { panic!("there are {} reports: {reports:#?}", reports.len()) };
    assert!(report.starts_with("ERROR message=`on_reject` returned a response whose body is not complete"), "{report}");
}

#[test]
fn the_first_denial_of_each_key_is_logged_and_the_others_counted() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let recorder = TraceRecorder::new().denial_interval(Duration::from_millis(200));
        let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).recorder(recorder).build();
        let deny = |key: &str, times| {
            for _ in 0..=times {
                let _ = limiter
                    .acquire(key, 1)
                    .into_ready()
                    .expect("memory is ready")
                    .expect("the memory store does not fail");
            }
        };
        deny("ann", 5);
        deny("bob", 1);
        std::thread::sleep(Duration::from_millis(250));
        // A new interval begins.
        deny("ann", 2);
    });
    let lines = reports.0.lock().expect("no thread has panicked");
    let suppressed: Vec<&str> = lines.iter().filter_map(|line| line.rsplit("suppressed=").next()).collect();
    assert_eq!(suppressed, ["0", "4", "0"], "{lines:#?}");
    for line in &*lines {
        assert!(line.starts_with("INFO message=a limit denied a key limit=\"mails\" key="), "{line}");
        // The time until midnight, in words.
        let (_, wait) = line.split_once(" cost=1 retry_after=").expect("a wait");
        assert!([" hour", " minute", " second"].iter().any(|unit| wait.contains(unit)), "{line}");
        assert!(!line.contains("ann"), "{line}");
    }
}

#[test]
fn the_text_of_an_explanation_shows_the_fingerprint_in_the_log() {
    let reports = Reports::default();
    let limits = [Limit::new("mails", FixedWindow::per_day(1)), Limit::new("letters", FixedWindow::per_day(2))];
    let limiter = Limiter::builder(limits).recorder(TraceRecorder::new()).build();
    tracing::subscriber::with_default(reports.clone(), || {
        let denied = limiter.acquire("ann", 2).into_ready().expect("memory is ready").expect("a decision");
        assert!(!denied.is_allowed());
    });
    let lines = reports.0.lock().expect("no thread has panicked").join("\n");
    let (_, rest) = lines.split_once(" key=").expect("a key");
    let fingerprint = rest.split(' ').next().expect("a fingerprint");

    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let text = runtime.block_on(limiter.explain("ann", 1)).to_string();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(fingerprint)).collect();
    assert!(matches!(lines[..], [line] if line.starts_with("  mails: ")), "{fingerprint} is not in: {text}");
}

#[test]
fn a_logged_denial_names_a_penalty() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let minute = Duration::from_secs(60);
        let mails = Limit::new("mails", FixedWindow::per_day(1));
        let mails = mails.penalty(Penalty::after(2, minute).locked_out_for(minute));
        let recorder = TraceRecorder::new().denial_interval(Duration::ZERO);
        let limiter = Limiter::builder([mails]).recorder(recorder).build();
        for _ in 0..3 {
            let _ = limiter.acquire("ann", 2).into_ready();
        }
    });
    let lines = reports.0.lock().expect("no thread has panicked");
    let locked_out: Vec<bool> = lines.iter().map(|line| line.contains(" penalty=true ")).collect();
    assert_eq!(locked_out, [false, true, true], "{lines:#?}");
}

#[test]
fn at_most_a_hundred_denied_keys_are_logged_per_interval() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let limiter =
            Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).recorder(TraceRecorder::new()).build();
        for key in 0..10_000_u64 {
            let denied =
                limiter.acquire(key, 2).into_ready().expect("memory is ready").expect("the memory store does not fail");
            assert!(!denied.is_allowed());
        }
    });
    assert_eq!(reports.0.lock().expect("no thread has panicked").len(), 100);
}

#[test]
fn denials_of_further_keys_are_counted_in_the_next_interval() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let interval = Duration::from_millis(500);
        let recorder = TraceRecorder::new().denial_interval(interval);
        let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).recorder(recorder).build();
        for key in 0..130_u64 {
            let _ = limiter.acquire(key, 2).into_ready();
        }
        std::thread::sleep(interval);
        let _ = limiter.acquire("ann", 2).into_ready();
    });
    let lines = reports.0.lock().expect("no thread has panicked");
    assert_eq!((lines.len(), lines.last().map(|line| suppressed(line))), (101, Some(30)), "{lines:#?}");
}

#[test]
fn a_decision_is_recorded_in_the_fields_of_the_current_span() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let limits = [
            Limit::new("wide", FixedWindow::per_day(9)),
            Limit::new("mails", FixedWindow::per_day(5)),
            // Has fewer tokens left when both deny.
            Limit::new("trial", FixedWindow::per_day(4)).shadow(),
        ];
        let limiter = Limiter::builder(limits).recorder(TraceRecorder::new()).build();
        for (key, cost) in [("ann", 5), ("bob", 9)] {
            let span = tracing::info_span!(
                target: "tower_ratelimit_test",
                "request",
                ratelimit.allowed = tracing::field::Empty,
                ratelimit.limit = tracing::field::Empty,
                ratelimit.remaining = tracing::field::Empty,
                ratelimit.decided_by = tracing::field::Empty,
            );
            let _ = span.in_scope(|| limiter.acquire(key, cost)).into_ready();
        }
    });
    let lines = reports.0.lock().expect("no thread has panicked");
    let fields: String = lines.iter().filter_map(|line| line.strip_prefix("span")).collect();
    assert_eq!(
        fields,
        " ratelimit.allowed=true ratelimit.decided_by=\"memory\" ratelimit.limit=\"mails\" ratelimit.remaining=0 \
         ratelimit.allowed=false ratelimit.decided_by=\"memory\" ratelimit.limit=\"mails\" ratelimit.remaining=5"
            .replace("         ratelimit", " ratelimit")
    );
}

fn minutely(name: &str) -> Limit {
    Limit::new(name, FixedWindow::per_minute(1_000))
}

/// Returns the reports of this many requests to `outer` around `inner`.
fn reports_of_nested<L, M>(outer: &L, inner: &M, requests: usize) -> Vec<String>
where
    L: Layer<RateLimit<Hello>, Service = RateLimit<RateLimit<Hello>>>,
    M: Layer<Hello, Service = RateLimit<Hello>>,
{
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let service = outer.layer(inner.layer(service_fn(hello as fn(Request<()>) -> Ready<_>)));
        let runtime = Builder::new_current_thread().enable_time().build().expect("there is a runtime");
        runtime.block_on(async {
            for _ in 0..requests {
                let _ = service.clone().oneshot(Request::new(())).await.expect("it never fails");
            }
        });
    });
    std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"))
}

#[track_caller]
fn is_one_warning(reports: &[String], words: &[&str]) {
    let [report] = reports else { panic!("there are {} reports: {reports:#?}", reports.len()) };
    assert!(report.starts_with("WARN message="), "{report}");
    words.iter().for_each(|words| assert!(report.contains(words), "{words}: {report}"));
}

#[test]
fn a_layer_that_is_applied_twice_is_reported_once_with_the_remedy() {
    for (name, styles) in [
        ("twice-told", vec![HeaderStyle::IETF]),
        ("twice-triple", vec![HeaderStyle::XRateLimit(ResetFormat::Seconds)]),
        ("twice-untold", vec![]),
    ] {
        let limits = RateLimitLayer::builder([minutely(name)]).headers(styles.clone()).build();
        let reports = reports_of_nested(&limits, &limits, 3);
        is_one_warning(&reports, &["charged twice", "apply the layer once", ".cost(", &format!("limit=\"{name}\"")]);
        // With permits and live limits.
        let rules = LiveLimits::new([minutely(&format!("live-{name}"))]);
        let limits = RateLimitLayer::live_builder(&rules).headers(styles).permits().build();
        is_one_warning(&reports_of_nested(&limits, &limits, 3), &["charged twice"]);
    }
}

/// A route with few requests.
#[test]
fn a_layer_applied_twice_is_detected_by_its_headers() {
    let limits = RateLimitLayer::new([minutely("twice-late")]);
    let other = RateLimitLayer::new([minutely("not-twice")]);
    assert_eq!(reports_of_nested(&limits, &other, 100), [] as [&str; 0]);
    is_one_warning(&reports_of_nested(&limits, &limits, 3), &["twice-late", "apply it once"]);
}

#[test]
fn two_layers_with_limits_of_one_name_are_reported_once_with_the_remedy() {
    let layer = || RateLimitLayer::new([minutely("shared-name"), minutely("shared-name-too")]);
    let (outer, inner) = (layer(), RateLimitLayer::new([minutely("shared-name")]));
    let reports = reports_of_nested(&outer, &inner, 200);
    is_one_warning(&reports, &["a name of its own", "limit=\"shared-name\""]);
    // Another limiter with the same mistake is reported, too.
    is_one_warning(&reports_of_nested(&layer(), &inner, 3), &["a name of its own", "limit=\"shared-name\""]);
}

/// A route cost inside the router's layer, and unrelated layers.
#[test]
fn layers_that_are_meant_to_be_nested_are_not_reported() {
    let limits = RateLimitLayer::new([minutely("route-cost")]);
    assert_eq!(reports_of_nested(&limits, &limits.cost(10), 100), [] as [&str; 0]);
    assert_eq!(reports_of_nested(&limits.cost(10), &limits.cost(10), 100), [] as [&str; 0]);
    let other = RateLimitLayer::new([minutely("another-name")]);
    assert_eq!(reports_of_nested(&limits, &other, 100), [] as [&str; 0]);
    let costs = CostTable::new().path("/", 10);
    assert_eq!(reports_of_nested(&other, &other.costs(costs), 100), [] as [&str; 0]);
}

#[derive(Clone)]
struct Account(u64);

/// As with a layer outside the one that sets the extension. Without the report, all requests would get 400 for no
/// apparent reason.
#[test]
fn a_missing_extension_is_reported_once_with_the_remedy() {
    let limit =
        || Limit::new("per-account", FixedWindow::per_minute(1)).by(key::extension(|account: &Account| account.0));
    let reports = reports_of(&RateLimitLayer::new([limit()]));
    let [report] = reports.as_slice() else { panic!("there are {} reports: {reports:#?}", reports.len()) };
    assert!(report.starts_with("ERROR message="), "{report}");
    assert!(report.contains("outside"), "{report}");
    assert!(report.contains("reports::Account"), "{report}");
    assert!(report.contains("limit=\"per-account\""), "{report}");
    // Both kinds of missing keys are reported, in any order.
    let both = RateLimitLayer::new([by_peer().on_missing_key(OnMissingKey::Skip), limit()]);
    assert_eq!(reports_of(&both).len(), 2);
    // The policy for requests without the extension is configured, so nothing is reported.
    for policy in [OnMissingKey::Skip, OnMissingKey::Share] {
        assert_eq!(reports_of(&RateLimitLayer::new([limit().on_missing_key(policy)])), [] as [&str; 0]);
    }
}

/// The explained request was not rejected. The first real one still has to be reported.
#[test]
fn an_explanation_of_a_missing_key_reports_nothing() {
    let layer = RateLimitLayer::new([by_peer()]);
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let runtime = Builder::new_current_thread().build().expect("there is a runtime");
        let explanation = runtime.block_on(layer.explain(&RequestHead::of(&Request::new(()))));
        assert!(!explanation.is_allowed());
    });
    assert_eq!(*reports.0.lock().expect("no thread has panicked"), [] as [&str; 0]);
    assert_eq!(reports_of(&layer).len(), 1);
}

/// Creates a store that fails when it is called.
fn failing() -> FaultyStore {
    FaultyStore::new(Mode::FailsAtOnce).named("10.0.0.5:6379")
}

#[test]
fn a_failing_store_is_reported_with_the_cause_the_store_and_the_policy() {
    let limit = Limit::new("one", FixedWindow::per_minute(1));
    let reports = reports_of(&RateLimitLayer::builder([limit]).store(failing()).build());
    // Four requests in much less than a minute.
    let report = "WARN message=a call to the store failed \
                  error=the rate limit store could not decide: redis://secret@10.0.0.7 is gone \
                  store=\"10.0.0.5:6379\" limits=\"one\" on_store_error=\"reject\" suppressed=0";
    assert_eq!(reports, [report]);
}

/// As with one limiter for each of many routes.
#[test]
fn an_outage_of_a_store_that_limiters_share_is_reported_once_with_the_limits_of_one() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            // Stores that know their clones.
            let failing = || FaultyStore::over(MemoryStore::new().with_hasher(KeyHasher::random()), Mode::Fails);
            let (store, other) = (failing(), failing());
            let limiter = |number: usize, store: &FaultyStore| {
                let limits = (0..=number).map(|limit| minutely(&format!("limit {number}.{limit}")));
                Limiter::builder(limits).store(store.clone()).build()
            };
            let mut limiters: Vec<_> = (0..7).map(|number| limiter(number, &store)).collect();
            for limiter in limiters.iter().rev().flat_map(|limiter| [limiter; 10]) {
                let _ = limiter.clone().acquire("key", 1).await;
            }
            let _ = limiter(0, &other).acquire("key", 1).await;
            // Its breaker never closes.
            limiters.remove(0);
            store.set(Mode::Works);
            tokio::time::sleep(Duration::from_secs(5)).await;
            for (closed, limiter) in limiters.iter().enumerate() {
                assert_eq!(reports.0.lock().expect("no thread has panicked").len(), 3, "{closed} breakers have closed");
                let _ = limiter.acquire("key", 1).await;
            }
        });
    });
    let reports = reports.0.lock().expect("no thread has panicked");
    assert_eq!(reports.len(), 4, "{reports:#?}");
    let first = "limits=\"limit 6.0, limit 6.1, limit 6.2, limit 6.3, limit 6.4\"";
    for (report, [start, limits]) in reports.iter().zip([
        [CALL_FAILED, first],
        [OPENED, first],
        // Another store has an outage of its own.
        [CALL_FAILED, "limits=\"limit 0.0\""],
        // The last of them.
        [CLOSED, first],
    ]) {
        assert!(report.starts_with(start) && report.contains(limits), "{limits}: {reports:#?}");
    }
}

/// Otherwise, the outage of one would hide that of another.
#[test]
fn outages_of_unknown_stores_are_reported_separately() {
    /// A store without an identity.
    #[derive(Debug)]
    struct Unknown(FaultyStore);
    impl Store for Unknown {
        fn hasher(&self) -> KeyHasher {
            KeyHasher::with_secret([7; 16])
        }

        fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
            self.0.decide(charges, purpose, longest_wait)
        }

        fn refund(&self, charges: &Charges) -> StoreFuture<()> {
            self.0.refund(charges)
        }

        fn reset(&self, charges: &Charges) -> StoreFuture<()> {
            self.0.reset(charges)
        }
    }
    let limiters = ["one", "other"].map(|name| Limiter::builder(minutely(name)).store(Unknown(failing())).build());
    let lines = lines_of(|| {
        for limiter in &limiters {
            assert!(limiter.acquire("key", 1).now_or_never().expect("it fails at once").is_err());
        }
    });
    assert!(lines.len() == 2 && lines[1].contains("limits=\"other\""), "{lines:#?}");
}

#[test]
fn policies_of_all_limits_are_reported() {
    let limit = |name: &str| Limit::new(name, FixedWindow::per_minute(1));
    let limits = [limit("one").on_store_error(OnStoreError::Allow), limit("two")];
    let reports = reports_of(
        &RateLimitLayer::builder(limits)
            .store(failing())
            .on_store_error(OnStoreError::DecideLocally(Share::whole()))
            .build(),
    );
    assert!(reports[0].contains(" on_store_error=\"allow, decide locally\" "), "{reports:#?}");
}

#[test]
fn the_name_of_a_redis_store_shows_no_credentials() {
    let store = RedisConfig::node("redis://user:secret@10.0.0.5:6379/2").connect_lazily().expect("a store");
    assert_eq!(store.name().as_deref(), Some("10.0.0.5:6379"));
}

/// Anyone can compute hashes with a public secret.
#[test]
fn a_shared_store_without_a_secret_is_reported_once() {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || {
        let redis = || RedisConfig::node("redis://127.0.0.1:1").connect_lazily().expect("a store");
        let build = |store: &dyn Fn() -> Arc<dyn Store>| {
            let stores = [store(), store()];
            for store in [&stores[0], &stores[0], &stores[1]] {
                let limit = || Limit::new("one", FixedWindow::per_minute(1)).by(key::path());
                let _ = Limiter::builder([Limit::new("one", FixedWindow::per_minute(1))]).store(store.clone()).build();
                let _ = RateLimitLayer::builder([limit()]).store(store.clone()).build();
            }
            std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"))
        };
        let (table, public) = (redis(), redis());
        for warned in [build(&|| Arc::new(public.clone())), build(&|| Arc::new(CasStore::from(Arc::new(NoDatabase))))] {
            assert!(warned[0].starts_with("WARN") && warned[0].contains("`RedisStore::secret`"), "{warned:?}");
            assert!(warned.len() <= 2, "once for each store: {warned:?}");
        }
        let table = table.secret([7; 16]);
        assert_eq!(build(&|| Arc::new(table.clone())), [""; 0]);
        assert_eq!(build(&|| Arc::new(CasStore::new(NoDatabase).secret([7; 16]).prefix("other"))), [""; 0]);
        assert_eq!(build(&|| Arc::new(MemoryStore::new())), [""; 0]);
    });
}

/// A database that is never called.
#[derive(Debug)]
struct NoDatabase;

impl CompareAndSwap for NoDatabase {
    async fn get(&self, _: &str) -> Result<Option<Versioned>, StoreError> {
        unreachable!()
    }

    async fn compare_and_swap(&self, _: &str, _: Option<u64>, _: &[u8], _: Duration) -> Result<bool, StoreError> {
        unreachable!()
    }

    async fn delete(&self, _: &str) -> Result<(), StoreError> {
        unreachable!()
    }
}

/// Returns the reports, with their times, of requests at an interval to a store that works or fails for some time.
fn reports_over(time: Duration, interval: Duration, is_up: impl Fn(Duration) -> bool) -> Vec<(Duration, String)> {
    let reports = Reports::default();
    let mut times = Vec::new();
    tracing::subscriber::with_default(reports.clone(), || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let store = FaultyStore::new(Mode::Fails);
            let limiter =
                Limiter::builder([Limit::new("many", FixedWindow::per_day(1_000_000))]).store(store.clone()).build();
            let begun = Instant::now();
            while begun.elapsed() < time {
                store.set(if is_up(begun.elapsed()) { Mode::Works } else { Mode::Fails });
                let _ = limiter.acquire("key", 1).await;
                tokio::time::sleep(interval).await;
                let new = std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"));
                times.extend(new.into_iter().map(|report| (begun.elapsed(), report)));
            }
        });
    });
    times
}

const CALL_FAILED: &str = "WARN message=a call to the store failed error=";
const OPENED: &str = "WARN message=the circuit breaker opened";
const CLOSED: &str = "INFO message=the circuit breaker closed";

#[test]
fn an_outage_is_reported_in_a_few_lines() {
    let (down, up) = (Duration::from_secs(150), Duration::from_secs(90));
    let reports = reports_over(down + up, Duration::from_millis(60), |since| since >= down);
    let reports: Vec<String> = reports.into_iter().map(|(_, report)| report).collect();
    let count = |start: &str| reports.iter().filter(|report| report.starts_with(start)).count();
    assert!(reports[0].starts_with(CALL_FAILED), "{reports:#?}");
    assert!(reports[1].starts_with(OPENED), "{reports:#?}");
    assert!(reports.last().is_some_and(|last| last.starts_with(CLOSED)), "{reports:#?}");
    assert!((2..=3).contains(&count(CALL_FAILED)), "{reports:#?}");
    assert_eq!((count(OPENED), count("INFO")), (1, 1), "{reports:#?}");
    let all = count(CALL_FAILED) as u64 + reports.iter().map(|report| suppressed(report)).sum::<u64>();
    assert!((2_500..=3_700).contains(&all), "{all} failures: {reports:#?}");
}

/// However often the store fails and recovers, at most one line of each kind is logged per minute.
#[test]
fn a_store_that_comes_and_goes_is_reported_once_a_minute() {
    const MINUTE: Duration = Duration::from_secs(60);
    let reports = reports_over(10 * MINUTE, Duration::from_millis(20), |since| since.as_secs() % 2 == 1);
    for kind in [CALL_FAILED, OPENED, CLOSED] {
        let times: Vec<Duration> =
            reports.iter().filter(|(_, report)| report.starts_with(kind)).map(|(time, _)| *time).collect();
        assert!((9..=10).contains(&times.len()), "{kind:?} {} times: {reports:#?}", times.len());
        assert!(times.is_sorted_by(|one, next| *next >= *one + MINUTE), "{kind:?} at {times:?}");
    }
    // A line counts those that were suppressed before it, and the end of a reported outage is reported.
    let opened = reports.iter().filter(|(_, report)| report.starts_with(OPENED));
    let suppressed: Vec<u64> = opened.map(|(_, report)| suppressed(report)).collect();
    assert!(suppressed[0] == 0 && suppressed[1..].iter().all(|count| *count >= 25), "{suppressed:?}");
    let (_, last) = reports.iter().rfind(|(_, report)| report.contains("circuit breaker")).expect("reports");
    assert!(last.starts_with(CLOSED), "{last}");
}

/// For a second outage soon after the first, no line reports the open breaker, but one reports the failures.
#[test]
fn the_end_of_every_reported_outage_is_reported() {
    let is_up = |since: Duration| matches!(since.as_secs(), 3..6 | 74..);
    let reports = reports_over(Duration::from_secs(77), Duration::from_millis(20), is_up);
    let (_, last) = reports.last().expect("reports");
    assert!(last.starts_with(CLOSED), "{reports:#?}");
}

/// At most one line of each kind is logged per minute, so the beginning of an outage may show a minute late.
#[test]
fn the_last_line_states_whether_the_store_is_in_use() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let length = |number| if number % 3 == 0 { 1 + number % 100 } else { 1 + number % 12 };
        // The ends of the outages and of the times between them, in turn.
        let ends: Vec<u64> = (0..30).scan(0, |end, _| (*end += length(random.next()), Some(*end)).1).collect();
        let is_up = |since: Duration| ends.iter().filter(|end| **end <= since.as_secs()).count() % 2 == 1;
        let over = Duration::from_secs(ends[ends.len() - 1]);
        let reports = reports_over(over, Duration::from_millis(100), is_up);
        for kind in [CALL_FAILED, OPENED, CLOSED] {
            let times: Vec<_> =
                reports.iter().filter(|(_, line)| line.starts_with(kind)).map(|(time, _)| *time).collect();
            let minute = Duration::from_secs(60);
            assert!(times.is_sorted_by(|one, next| *next >= *one + minute), "seed {seed}: {kind:?} at {times:?}");
        }
        for (number, pair) in ends.windows(2).enumerate() {
            let (begin, end) = (pair[0], pair[1]);
            let last = reports.iter().rfind(|(time, _)| *time < Duration::from_secs(end));
            let (_, last) = last.expect("the first outage is reported");
            let is_up = number % 2 == 0;
            // A breaker closes within three seconds.
            if end - begin > if is_up { 3 } else { 61 } {
                assert_eq!(last.starts_with(CLOSED), is_up, "seed {seed}, {begin} to {end} s: {last}: {reports:#?}");
            }
        }
    }
}

/// Returns the number of suppressed lines that a line counts.
fn suppressed(report: &str) -> u64 {
    report.split("suppressed=").nth(1).map_or(0, |number| number.parse().expect("a number"))
}

/// Returns the lines that are logged while `run` runs.
fn lines_of<T>(run: impl FnOnce() -> T) -> Vec<String> {
    let reports = Reports::default();
    tracing::subscriber::with_default(reports.clone(), || drop(run()));
    std::mem::take(&mut *reports.0.lock().expect("no thread has panicked"))
}

/// Returns the lines that are logged for requests of these paths to an app.
fn lines_of_requests(app: &Router, paths: &[&str]) -> Vec<String> {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    lines_of(|| {
        for path in paths {
            let request = Request::get(*path).body(Body::empty()).expect("a request");
            let _ = runtime.block_on(app.clone().oneshot(request)).expect("it never fails");
        }
    })
}

fn users(layer: RateLimitLayer) -> Router {
    let users = Router::new().route("/users/{id}", get(async || "")).route("/login", get(async || ""));
    Router::new().nest("/api", users).route("/health", get(async || "")).layer(layer)
}

const USERS: [&str; 4] = ["/health", "/api/users/1", "/api/login", "/api/users/2"];

#[test]
fn a_condition_that_misses_a_similar_route_is_reported_once() {
    for route in [
        "/api/users/{user}",
        "/api/users/{id}/",
        "/api/Users/{id}",
        "/users/{id}",
        "/api/users/1",
        "/login",
        "/api/login/",
    ] {
        let app = users(RateLimitLayer::new([minutely("users").when(when::route(route))]));
        let repeated = USERS.repeat(2);
        let matched = if route.contains("login") { "/api/login" } else { "/api/users/{id}" };
        is_one_warning(&lines_of_requests(&app, &repeated), &[&format!("{route:?}"), &format!("{matched:?}")]);
        let costs = CostTable::new().path(route, 2);
        let app = users(RateLimitLayer::builder([minutely("users")]).costs(costs).build());
        is_one_warning(&lines_of_requests(&app, &repeated), &[&format!("{route:?}"), &format!("{matched:?}")]);
    }
}

#[test]
fn parameters_of_other_routers_are_reported_when_they_are_configured() {
    for path in ["/users/:id", "/api/*", "/api/*rest"] {
        is_one_warning(&lines_of(|| when::route(path)), &[path, "in braces"]);
        is_one_warning(&lines_of(|| when::path_prefix(path)), &[path]);
        let costs = || CostTable::new().path(path, 2);
        is_one_warning(&lines_of(|| RateLimitLayer::builder([minutely("all")]).costs(costs()).build()), &[path]);
    }
}

#[test]
fn a_route_with_parameters_outside_the_router_is_reported_once() {
    let layer = RateLimitLayer::new([minutely("users").when(when::route("/users/{id}"))]);
    is_one_warning(&reports_of(&layer), &["\"/users/{id}\""]);
}

#[test]
fn a_rule_for_the_path_of_a_request_without_a_route_is_reported_once() {
    let lines = |extractors: Extractors, value: &str| {
        let rule = format!("{{ key: path, value: {value}, rate_limit: {{ unit: day, requests_per_unit: 9 }} }}");
        let file = format!("domain: d\ndescriptors:\n- {rule}");
        let limiter = RequestLimiter::new(rules::from_yaml(&file, &extractors).expect("valid rules"));
        lines_of(|| {
            for path in ["/b", "/a/1", "/a/1"] {
                let request = Request::get(path).body(()).expect("a request");
                let _ = limiter.decide(&RequestHead::of(&request)).now_or_never().expect("at once");
            }
        })
    };
    for value in ["/a/1", "/a/*"] {
        is_one_warning(&lines(Extractors::new(), value), &["\"/a/1\""]);
        assert_eq!(lines(Extractors::new().register("path", key::path()), value), [] as [&str; 0]);
    }
}

#[test]
fn routes_that_fit_are_not_reported() {
    for route in ["/api/users/{id}", "/api/login", "/health", "/", "/other", "/users", "/package.Service/Method:go"] {
        let app = users(RateLimitLayer::new([minutely("users").when(when::route(route))]));
        assert_eq!(lines_of_requests(&app, &USERS), [] as [&str; 0], "{route}");
        let costs = CostTable::new().path(route, 2);
        let app = users(RateLimitLayer::builder([minutely("users")]).costs(costs).build());
        // Clients choose paths that no router has matched.
        assert_eq!(lines_of_requests(&app, &["/health/", "/x/other", "/HEALTH", "/x/users/1"]), [] as [&str; 0]);
    }
    for route in ["/{*rest}", "/{id}.json", "/v1/{name}:cancel", "/{{literal}}"] {
        assert_eq!(lines_of(|| when::route(route)), [] as [&str; 0], "{route}");
    }
}

#[test]
fn limits_that_enforce_nothing_are_reported() {
    let expected = ["no limit is enforced"];
    is_one_warning(&lines_of(|| RateLimitLayer::new([])), &expected);
    is_one_warning(&lines_of(|| Limiter::new([])), &expected);
    is_one_warning(&lines_of(|| RateLimitLayer::new([minutely("all").shadow()])), &expected);
    is_one_warning(&lines_of(|| Limiter::builder([minutely("all")]).shadow().build()), &expected);
    let some = || RateLimitLayer::new([minutely("all"), minutely("new").shadow()]);
    assert_eq!(lines_of(some), [] as [&str; 0]);
    // These may be replaced before the first request.
    assert_eq!(lines_of(|| RateLimitLayer::live_builder(&LiveLimits::new([])).build()), [] as [&str; 0]);
}

#[test]
fn exempting_a_whole_address_family_is_reported() {
    let build = |cidrs: &[&str]| {
        let list = AddressList::new(key::peer_ip(), cidrs);
        lines_of(|| RateLimitLayer::builder([minutely("all")]).never_limit(list).build())
    };
    is_one_warning(&build(&["0.0.0.0/0"]), &["`never_limit` exempts all requests of an address family"]);
    is_one_warning(&build(&["10.0.0.0/8", "::/0"]), &["`never_limit` exempts all requests of an address family"]);
    assert_eq!(build(&["10.0.0.0/8", "fd00::/8"]), [] as [&str; 0]);
    let all = AddressList::new(key::peer_ip(), ["0.0.0.0/0"]);
    let rejected = lines_of(|| RateLimitLayer::builder([minutely("all")]).always_reject(all).build());
    assert_eq!(rejected, [] as [&str; 0]);
}

#[test]
fn an_elastic_limit_whose_requests_are_not_counted_is_reported_once() {
    let limiter = Limiter::new([minutely("all").elastic(50, InFlight::below(5))]);
    let lines = lines_of(|| (0..3).for_each(|_| drop(limiter.acquire("ann", 1))));
    is_one_warning(&lines, &["`InFlight`"]);
}
