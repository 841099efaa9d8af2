//! Charges in flight, which fill a limit until the responses refund them, are no reason for a strike.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use futures_util::future::join_all;
use http::StatusCode;
use support::database::{Database, Fault};
use support::event_log::EventLog;
use support::faulty_store::{FaultyStore, Mode};
use support::store_fixture::{StoreFixture, midnight, on_both_stores, user_key, visit};
use support::time::{DAY, HOUR, MINUTE};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, Limit, OnStoreError, Penalty, Permit, RateLimitLayer, Share, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket,
};

on_both_stores!(
    valid_requests_at_once_lock_nobody_out,
    failures_lock_out_once_they_have_failed,
    a_charge_in_flight_that_counts_no_more_hides_no_strike,
    cancelled_requests_and_panics_end_charges_in_flight,
    a_refund_before_the_response_ends_a_part_of_the_charge_in_flight,
    a_route_that_costs_less_has_less_in_flight,
    each_limit_counts_its_own_strikes,
);

mod on_compare_and_swap {
    use super::{Database, Fault, StoreFixture, midnight};
    use std::sync::Arc;

    fn fixture() -> StoreFixture {
        let clock = midnight();
        let store = Arc::new(Database::store(clock.clone(), Fault::None));
        StoreFixture { store, clock, is_memory: false, server: None }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn valid_requests_at_once_lock_nobody_out() {
        super::valid_requests_at_once_lock_nobody_out(fixture()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn failures_lock_out_once_they_have_failed() {
        super::failures_lock_out_once_they_have_failed(fixture()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_limit_counts_its_own_strikes() {
        super::each_limit_counts_its_own_strikes(fixture()).await;
    }
}

/// Five failures, after which the first strike locks a user out for an hour.
fn failures(algorithm: impl Into<Algorithm>) -> Limit {
    let limit = Limit::new("failures", algorithm).by(user_key()).penalty(Penalty::after(1, HOUR));
    limit.count_if(|response| response.status == StatusCode::UNAUTHORIZED)
}

async fn pass(gate: &Semaphore) {
    let _turn = gate.acquire().await.unwrap();
}

/// A service whose requests wait at a gate.
struct Gated {
    app: Router,
    gate: Arc<Semaphore>,
    events: EventLog,
}

impl Gated {
    fn new(fixture: &StoreFixture, limits: impl IntoIterator<Item = Limit>) -> Self {
        let events = EventLog::default();
        let layer = fixture.builder(limits).observe(events.observer()).permits();
        Self::of(layer.cost_by(|head| if head.uri.path() == "/two" { 2 } else { 1 }).build(), Router::new(), events)
    }

    /// Adds `routes` to those of all tests.
    fn of(layer: RateLimitLayer, routes: Router<Arc<Semaphore>>, events: EventLog) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let charge = async |State(gate): State<Arc<Semaphore>>, permit: Permit| {
            assert!(permit.charge(4).await.unwrap().is_allowed());
            pass(&gate).await;
        };
        // Its permit outlives the request.
        let detached = async |State(gate): State<Arc<Semaphore>>, permit: Permit| {
            tokio::spawn(async move {
                pass(&gate).await;
                drop(permit);
            });
            std::future::pending::<()>().await;
        };
        let refund = async |State(gate): State<Arc<Semaphore>>, permit: Permit| {
            assert!(permit.charge(4).await.unwrap().is_allowed());
            permit.settle(1).await.unwrap();
            pass(&gate).await;
        };
        let app = Router::new()
            .route("/good", get(async |State(gate): State<Arc<Semaphore>>| pass(&gate).await))
            .route(
                "/gated",
                get(async |State(gate): State<Arc<Semaphore>>| {
                    pass(&gate).await;
                    StatusCode::UNAUTHORIZED
                }),
            )
            .route(
                "/panic",
                get(async |State(gate): State<Arc<Semaphore>>| -> StatusCode {
                    pass(&gate).await;
                    panic!("a bug in a handler");
                }),
            )
            .route("/detached", get(detached))
            .route("/charge", get(charge))
            .route("/refund", get(refund))
            .route("/bad", get(async || StatusCode::UNAUTHORIZED))
            .route("/two", get(async || StatusCode::UNAUTHORIZED))
            .merge(routes)
            .layer(layer)
            .with_state(gate.clone());
        Self { app, gate, events }
    }

    async fn ask(&self, path: &str) -> u16 {
        visit(&self.app, path, "ann").await.status.as_u16()
    }

    /// Sends requests at once, and waits until all but `held` are answered.
    async fn send(&self, path: &'static str, count: usize, held: usize) -> Vec<JoinHandle<u16>> {
        let send = |app: Router| async move { visit(&app, path, "ann").await.status.as_u16() };
        let sent: Vec<_> = (0..count).map(|_| tokio::spawn(send(self.app.clone()))).collect();
        while sent.iter().filter(|request| request.is_finished()).count() < count - held {
            yield_now().await;
        }
        sent
    }

    /// Sends requests that are all held, and waits until they are charged.
    async fn hold(&self, fixture: &StoreFixture, path: &'static str, count: usize, left: i64) -> Vec<JoinHandle<u16>> {
        let held = self.send(path, count, count).await;
        let limit = Limit::new("failures", FixedWindow::new(5, DAY));
        while fixture.remaining(&limit, "ann").await != left {
            yield_now().await;
        }
        // A permit settles after that.
        tokio::time::sleep(Duration::from_millis(100)).await;
        held
    }

    /// Checks that all `sent` requests were denied, but for those that were held, and have this `status` now.
    async fn release(&self, sent: Vec<JoinHandle<u16>>, held: usize, status: u16) {
        let total = sent.len();
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
        let statuses: Vec<u16> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
        let count = |expected| statuses.iter().filter(|status| **status == expected).count();
        assert_eq!((count(status), count(429)), (held, total - held));
    }

    /// Waits until the refunds are complete, and checks that there was no lockout.
    async fn passes(&self) {
        while self.ask("/good").await != 200 {
            assert_eq!(self.events.take(), [""; 0]);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.events.take(), [""; 0]);
    }

    async fn fails(&self, path: &str, times: usize) {
        for attempt in 0..times {
            assert_eq!(self.ask(path).await, 401, "{attempt}");
            assert_eq!(self.events.take(), [""; 0]);
        }
    }

    async fn is_denied(&self, path: &str, events: &[&str]) {
        assert_eq!(self.ask(path).await, 429);
        assert_eq!(self.events.take(), events);
    }
}

const LOCKOUT: &[&str] = &["failures 1 3600s"];

async fn valid_requests_at_once_lock_nobody_out(fixture: StoreFixture) {
    let algorithms: [Algorithm; 7] = [
        FixedWindow::new(5, DAY).into(),
        SlidingLog::new(5, DAY).into(),
        SlidingWindow::new(5, DAY).into(),
        SlidingWindowCounter::new(5, DAY).into(),
        TokenBucket::new(5, 1, HOUR).into(),
        TokenBucket::new(5, 1, HOUR).at_intervals().into(),
        LeakyBucket::new(5, 1, HOUR).into(),
    ];
    for algorithm in algorithms {
        for count in [6, 100] {
            let gated = Gated::new(&fixture, [failures(algorithm)]);
            let sent = gated.send("/good", count, 5).await;
            gated.release(sent, 5, 200).await;
            gated.passes().await;
            fixture.advance(2 * DAY);
        }
    }
    let gated = Gated::new(&fixture, [failures(FixedWindow::new(5, DAY))]);
    gated.hold(&fixture, "/charge", 1, 0).await;
    gated.is_denied("/good", &[]).await;
}

async fn failures_lock_out_once_they_have_failed(fixture: StoreFixture) {
    let gated = Gated::new(&fixture, [failures(FixedWindow::new(5, DAY))]);
    gated.fails("/bad", 5).await;
    gated.is_denied("/bad", LOCKOUT).await;
    fixture.advance(DAY);
    let sent = gated.send("/gated", 100, 5).await;
    assert_eq!(gated.events.take(), [""; 0], "they have not failed yet");
    gated.release(sent, 5, 401).await;
    gated.is_denied("/bad", LOCKOUT).await;
    gated.is_denied("/bad", &[]).await;
}

async fn a_charge_in_flight_that_counts_no_more_hides_no_strike(fixture: StoreFixture) {
    let algorithms: [Algorithm; 4] = [
        FixedWindow::new(5, DAY).into(),
        SlidingLog::new(5, DAY).into(),
        TokenBucket::new(5, 5, DAY).into(),
        TokenBucket::new(5, 5, DAY).at_intervals().into(),
    ];
    for algorithm in algorithms {
        let gated = Gated::new(&fixture, [failures(algorithm)]);
        let held = gated.send("/gated", 6, 5).await;
        gated.is_denied("/bad", &[]).await;
        fixture.advance(DAY);
        gated.fails("/bad", 5).await;
        gated.is_denied("/bad", LOCKOUT).await;
        held.iter().for_each(JoinHandle::abort);
        fixture.advance(DAY);
    }
    // Of five tokens in flight, one has drained.
    let gated = Gated::new(&fixture, [failures(TokenBucket::new(5, 1, MINUTE))]);
    let _held = gated.send("/gated", 6, 5).await;
    fixture.advance(MINUTE);
    gated.fails("/bad", 1).await;
    gated.is_denied("/bad", &[]).await;
    fixture.advance(4 * MINUTE);
    gated.fails("/bad", 4).await;
    gated.is_denied("/bad", LOCKOUT).await;
}

async fn cancelled_requests_and_panics_end_charges_in_flight(fixture: StoreFixture) {
    for path in ["/gated", "/panic", "/detached"] {
        let gated = Gated::new(&fixture, [failures(FixedWindow::new(5, DAY))]);
        let sent = gated.send(path, 6, 5).await;
        gated.is_denied("/good", &[]).await;
        if path == "/panic" {
            gated.gate.add_permits(5);
        } else {
            sent.iter().for_each(JoinHandle::abort);
        }
        join_all(sent).await;
        gated.is_denied("/good", LOCKOUT).await;
        fixture.advance(DAY);
    }
}

async fn a_refund_before_the_response_ends_a_part_of_the_charge_in_flight(fixture: StoreFixture) {
    let gated = Gated::new(&fixture, [failures(FixedWindow::new(5, DAY))]);
    let _held = gated.hold(&fixture, "/refund", 1, 4).await;
    gated.fails("/bad", 4).await;
    gated.is_denied("/bad", &[]).await;
    gated.is_denied("/two", LOCKOUT).await;
}

async fn a_route_that_costs_less_has_less_in_flight(fixture: StoreFixture) {
    let events = EventLog::default();
    let limit = failures(FixedWindow::new(21, DAY));
    let layer = fixture.builder([limit]).observe(events.observer()).permits().cost(10).build();
    let cheap = get(async |State(gate): State<Arc<Semaphore>>| pass(&gate).await).route_layer(layer.cost(1));
    let costly = get(async || StatusCode::UNAUTHORIZED).route_layer(layer.cost(12));
    let gated = Gated::of(layer, Router::new().route("/cheap", cheap).route("/costly", costly), events);
    let _held = gated.hold(&fixture, "/cheap", 1, 4).await;
    gated.fails("/costly", 1).await;
    gated.is_denied("/cheap", LOCKOUT).await;
}

async fn each_limit_counts_its_own_strikes(fixture: StoreFixture) {
    let all = Limit::new("all", FixedWindow::new(5, DAY)).by(user_key()).penalty(Penalty::after(3, HOUR));
    let limits = [
        failures(FixedWindow::new(5, DAY)),
        all,
        Limit::new("quota", FixedWindow::new(9, DAY)).by(user_key()).quota_mode(),
        Limit::new("shadow", FixedWindow::new(1, DAY)).by(user_key()).penalty(Penalty::after(1, HOUR)).shadow(),
    ];
    let gated = Gated::new(&fixture, limits);
    let sent = gated.send("/good", 5, 5).await;
    let charged = async || fixture.remaining(&Limit::new("all", FixedWindow::new(5, DAY)), "ann").await;
    while charged().await > 0 {
        yield_now().await;
    }
    let mut lockouts = Vec::new();
    for _ in 0..4 {
        assert_eq!(gated.ask("/good").await, 429);
        let events = gated.events.take().into_iter().filter(|event| event != "shadow shadow");
        lockouts.push(events.collect::<Vec<_>>().join(" "));
    }
    assert_eq!(lockouts, ["", "", "all 1 3600s", ""]);
    drop(sent);
}

/// If their strikes take longer, they do not count.
#[tokio::test(start_paused = true)]
async fn denials_at_once_are_answered_within_the_deadline() {
    let database = Database::new(midnight(), Fault::None).latency(Duration::from_millis(5));
    let limit = failures(FixedWindow::new(1, DAY)).penalty(Penalty::after(1_000, HOUR));
    let layer = RateLimitLayer::builder([limit]).store(CasStore::new(database)).permits().build();
    let gated = Gated::of(layer, Router::new(), EventLog::default());
    gated.fails("/bad", 1).await;
    let began = tokio::time::Instant::now();
    let statuses = join_all((0..40).map(|_| gated.ask("/bad"))).await;
    assert!(statuses.iter().all(|status| *status == 429 || *status == 500), "{statuses:?}");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test]
async fn valid_requests_at_once_lock_nobody_out_while_the_store_fails() {
    let events = EventLog::default();
    let layer = RateLimitLayer::builder([failures(FixedWindow::new(5, DAY))])
        .store(FaultyStore::new(Mode::FailsAtOnce))
        .observe(events.observer())
        .permits()
        .on_store_error(OnStoreError::DecideLocally(Share::whole()));
    let gated = Gated::of(layer.build(), Router::new(), events);
    let lockouts =
        || -> Vec<String> { gated.events.take().into_iter().filter(|event| event.starts_with("failures")).collect() };
    let sent = gated.send("/good", 100, 5).await;
    gated.release(sent, 5, 200).await;
    for status in [200, 401, 401, 401, 401, 401, 429] {
        let path = if status == 200 { "/good" } else { "/bad" };
        assert_eq!((lockouts(), gated.ask(path).await), (Vec::new(), status));
    }
    assert_eq!(lockouts(), LOCKOUT);
}
