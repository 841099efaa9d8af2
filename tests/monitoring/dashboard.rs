//! Each query of the dashboard and of the alerts returns data on a real Prometheus.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use serde_json::Value;
use support::database::{Database, Fault};
use support::faulty_store::{FaultyStore, Mode};
use support::redis_server::Folder;
use support::repository;
use tokio::net::TcpListener;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{
    CircuitBreaker, Event, FixedWindow, KeyList, LeakyBucketQueue, Limit, Limiter, ListAction, LiveLimits,
    MetricsRecorder, OnStoreError, Penalty, RateLimitLayer, Recorder, Share, Store, SystemClock, TokenBucket, key,
};

use crate::prometheus::{Prometheus, promtool};

/// Repeatedly creates every kind of decision and event.
async fn make_traffic(recorder: Arc<MetricsRecorder>) -> Infallible {
    let day = Duration::from_secs(86_400);
    let local = Limiter::builder([
        Limit::new("plain", FixedWindow::per_second(20)),
        Limit::new("shadow", FixedWindow::per_second(3)).shadow(),
        Limit::new("soft", FixedWindow::per_second(5)).soft(100),
        Limit::new("queue", LeakyBucketQueue::per_second(30).waiting(9)),
    ])
    .recorder(recorder.clone())
    .build();
    let penalty = Penalty::after(1, day).locked_out_for(Duration::from_millis(50));
    let strict = Limiter::builder([Limit::new("strict", FixedWindow::per_second(1)).penalty(penalty)])
        .recorder(recorder.clone())
        .build();
    let store = FaultyStore::new(Mode::Works);
    let remote = Limiter::builder([Limit::new("remote", TokenBucket::per_second(1_000))])
        .store(store.clone())
        .on_store_error(OnStoreError::DecideLocally(Share::whole()))
        .circuit_breaker(CircuitBreaker::new().failures(2))
        .recorder(recorder.clone())
        .build();
    let leased = Limit::new("leased", FixedWindow::per_minute(1_000_000)).leased(Duration::from_millis(200));
    let leased = Limiter::builder([leased])
        .store(CasStore::new(Database::new(SystemClock::new(), Fault::None)))
        .recorder(recorder.clone())
        .build();
    let listed =
        RateLimitLayer::builder([Limit::new("listed", FixedWindow::per_second(9)).by(key::header("x-tenant"))])
            .always_reject_with(ListAction::Shadow, KeyList::new(key::header("x-user"), ["eve"]))
            .recorder(recorder.clone())
            .build();
    // Settles more than the limit has.
    let unpaid = RateLimitLayer::builder([Limit::new("unpaid", FixedWindow::per_second(20)).settle_by(|_| Some(30))])
        .recorder(recorder.clone())
        .build();
    let in_flight = Limiter::builder([Limit::concurrent("in-flight", 2)]).recorder(recorder.clone()).build();
    let live = LiveLimits::new([]).recorder(recorder);
    let answer =
        tower::service_fn(async |_: http::Request<String>| Ok::<_, Infallible>(http::Response::new(String::new())));
    let (service, unpaid) = (tower::Layer::layer(&listed, answer), tower::Layer::layer(&unpaid, answer));
    for round in 0_u64.. {
        // The store fails every second second.
        store.set(if round / 40 % 2 == 1 { Mode::Fails } else { Mode::Works });
        for limiter in [&local, &strict, &remote, &leased] {
            let _ = limiter.acquire(round % 2, 1).await.expect("a decision");
        }
        let request = http::Request::get("/").header("x-user", "eve").body(String::new()).expect("a request");
        let _ = tower::ServiceExt::oneshot(service.clone(), request).await;
        let _ = tower::ServiceExt::oneshot(unpaid.clone(), http::Request::new(String::new())).await;
        let _held = in_flight.hold(round % 2, 1).await.expect("a slot");
        live.replace([Limit::new("a", FixedWindow::per_day(1))]).expect("valid limits");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    unreachable!("rounds have no end")
}

/// Replaces the variables of Grafana.
fn query(expression: &str) -> String {
    expression.replace("$__rate_interval", "1m").replace("$__range", "1m").replace("$limit", ".*")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboard_and_every_alert_has_data() {
    let durations = Matcher::Full("ratelimit_store_duration_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(durations, &[0.001, 0.01]).expect("buckets");
    let exporter = builder.install_recorder().expect("the only exporter of this process");
    let metrics = Router::new().route("/metrics", get(async move || exporter.render()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    tokio::spawn(async { axum::serve(listener, metrics).await });
    tokio::spawn(make_traffic(Arc::new(MetricsRecorder::new())));
    let prometheus = Prometheus::start(address).await;

    let dashboard = std::fs::read_to_string(repository("docs/dashboards/grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            prometheus.query(&query(target["expr"].as_str().expect("a query"))).await;
            queries += 1;
        }
    }
    assert!(queries > 15, "{queries} queries");

    // The condition of an alert without its threshold has data.
    let alerts = std::fs::read_to_string(repository("docs/dashboards/alerts.yaml")).expect("the alerts");
    for metric in alerts.split(|character: char| !character.is_ascii_alphanumeric() && character != '_') {
        if metric.starts_with("ratelimit_") {
            prometheus.query(metric).await;
        }
    }
}

/// Records metrics by an exporter of its own, on any thread.
struct Exported(MetricsRecorder, Arc<PrometheusRecorder>);

impl Recorder for Exported {
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        metrics::with_local_recorder(&*self.1, || self.0.prepare(names, store));
    }

    fn event(&self, event: &Event<'_>) {
        metrics::with_local_recorder(&*self.1, || self.0.event(event));
    }
}

/// `increase` of a series that begins with the first rejection is 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_rejected_file_raises_the_alert() {
    let exporter = Arc::new(PrometheusBuilder::new().build_recorder());
    let handle = exporter.handle();
    let metrics = Router::new().route("/metrics", get(async move || handle.render()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    tokio::spawn(async { axum::serve(listener, metrics).await });
    let folder = Folder::new();
    let path = folder.write("limits.yaml", "domain: shop");
    let limits = rules::watch(path, Extractors::new()).expect("a file");
    let limits = limits.recorder(Exported(MetricsRecorder::new(), exporter));
    let prometheus = Prometheus::start(address).await;

    let alerts = std::fs::read_to_string(repository("docs/dashboards/alerts.yaml")).expect("the alerts");
    let (_, alert) = alerts.split_once("alert: RateLimitRulesRejected\n        expr: ").expect("the alert");
    let (expression, _) = alert.split_once('\n').expect("a line");
    let (condition, _) = expression.split_once(" > 0").expect("a threshold");
    let before = prometheus.query(condition).await;
    assert_eq!(before[0]["value"][1], "0", "{before:#?}");
    folder.write("limits.yaml", "domain:");
    prometheus.query(expression).await;
    drop(limits);
}

#[test]
fn promtool_accepts_the_alerts() {
    let alerts = repository("docs/dashboards/alerts.yaml");
    assert_eq!(promtool(&["check", "rules", alerts.to_str().expect("a UTF-8 path")], ""), Ok(()));
}

#[test]
fn alerts_fire_when_they_should() {
    let tests = repository("tests/monitoring/alerts.yaml");
    assert_eq!(promtool(&["test", "rules", tests.to_str().expect("a UTF-8 path")], ""), Ok(()));
}
