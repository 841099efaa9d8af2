//! Metrics as an exporter receives them.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use support::split_mix::Random;
use tower::Layer;
use tower_ratelimit::{FixedWindow, Limit, LiveLimits, MetricsRecorder, RateLimitLayer, TokenBucket, key};

use crate::limited::{LOCALLY, acquire, ask, hello, limiter, ms, with};
use support::faulty_store::{FaultyStore, Mode};

/// Returns the value of each series, by its name and labels. For histograms, it is the number of samples.
fn series(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let read = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.key().name().trim_start_matches("ratelimit_"), labels.join(","));
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(samples) => samples.len() as f64,
        };
        (name, value)
    };
    snapshotter.snapshot().into_vec().into_iter().map(read).collect()
}

/// Sends 10,000 requests of this many users. Returns the number of allowed and denied requests, and the series.
async fn requests_by(users: u64) -> (f64, f64, BTreeMap<String, f64>) {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limits = [
        Limit::new("users", TokenBucket::per_day(3)).by(key::header("x-user")),
        Limit::new("all", FixedWindow::per_day(6_000)).shadow(),
    ];
    let layer = RateLimitLayer::builder(limits).recorder(MetricsRecorder::new()).build();
    let service = layer.layer(hello());
    let (mut allowed, mut denied, mut random) = (0.0, 0.0, Random(7));
    for _ in 0..10_000 {
        let user = random.below(users).to_string();
        match ask(&service, with(&[("x-user", &user)])).await.status.as_u16() {
            200 => allowed += 1.0,
            429 => denied += 1.0,
            status => panic!("{status}"),
        }
    }
    (allowed, denied, series(&exporter.snapshotter()))
}

#[tokio::test(start_paused = true)]
async fn metrics_agree_with_responses_and_their_number_does_not_grow_with_keys() {
    let (allowed, denied, many) = requests_by(3_000).await;
    assert!(allowed > 6_000.0 && denied > 1_000.0, "{allowed} allowed, {denied} denied");
    for (name, value) in [
        ("decisions_total{limit=users,outcome=allowed,decided_by=memory}", allowed),
        ("decisions_total{limit=users,outcome=denied,decided_by=memory}", denied),
        ("tokens_total{limit=users}", allowed),
        ("tokens_total{limit=all}", 6_000.0),
    ] {
        assert_eq!(many.get(name), Some(&value), "{name} in {many:#?}");
    }
    let (_, _, few) = requests_by(2_200).await;
    assert_eq!(many.keys().collect::<Vec<_>>(), few.keys().collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn each_decision_is_one_count_and_each_token_charged_too() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limits = [Limit::new("day", FixedWindow::per_day(10))];
    let layer = RateLimitLayer::builder(limits).recorder(MetricsRecorder::new().label("limiter", "api")).build();
    let service = layer.cost(3).layer(hello());
    for _ in 0..5 {
        ask(&service, with(&[])).await;
    }
    let series = series(&exporter.snapshotter());
    let expected = [
        ("decisions_total{limiter=api,limit=day,outcome=allowed,decided_by=memory}", 3.0),
        ("decisions_total{limiter=api,limit=day,outcome=denied,decided_by=memory}", 2.0),
        ("keys{limiter=api}", 1.0),
        ("near_limit_total{limiter=api,limit=day}", 1.0),
        ("queue_length{limiter=api}", 0.0),
        ("rejections_total{limiter=api,reason=limited}", 2.0),
        ("tokens_total{limiter=api,limit=day}", 9.0),
    ];
    for (name, value) in expected {
        assert_eq!(series.get(name), Some(&value), "{name} in {series:#?}");
    }
    assert!(series["memory_bytes{limiter=api}"] > 0.0);
    assert_eq!(series.len(), expected.len() + 1, "{series:#?}");
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_store_are_counted() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let store = FaultyStore::new(Mode::Works);
    let limiter = limiter(&store).on_store_error(LOCALLY).recorder(MetricsRecorder::new()).build();
    assert!(acquire(&limiter).await.0.is_ok());
    store.set(Mode::Hangs);
    for _ in 0..6 {
        assert!(acquire(&limiter).await.0.is_ok());
    }
    let outage = series(&exporter.snapshotter());
    for (name, value) in [
        ("decisions_total{limit=ten,outcome=allowed,decided_by=store}", 1.0),
        ("decisions_total{limit=ten,outcome=allowed,decided_by=fallback}", 6.0),
        ("store_duration_seconds{decided_by=store}", 1.0),
        ("store_duration_seconds{decided_by=fallback}", 6.0),
        ("store_errors_total{kind=timed_out}", 5.0),
        ("store_errors_total{kind=breaker_open}", 1.0),
        ("fallbacks_total{to=decided_locally}", 6.0),
        ("breaker_state{node=store}", 2.0),
    ] {
        assert_eq!(outage.get(name), Some(&value), "{name} in {outage:#?}");
    }
    store.set(Mode::Works);
    while !matches!(acquire(&limiter).await.0, Ok(tower_ratelimit::DecidedBy::Store)) {
        tokio::time::sleep(ms(50)).await;
    }
    assert_eq!(series(&exporter.snapshotter())["breaker_state{node=store}"], 0.0);
}

#[test]
fn loads_of_live_limits_are_counted() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limit = |name| Limit::new(name, FixedWindow::per_day(10));
    let limits = LiveLimits::new([limit("a")]).recorder(MetricsRecorder::new());
    limits.replace([limit("a"), limit("b")]).expect("valid limits");
    let series = series(&exporter.snapshotter());
    assert_eq!(series["rules_info{}"], 2.0);
    assert_eq!(series["rules_loads_total{result=applied}"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn details_split_the_metrics_of_a_limit_into_at_most_100_and_others() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limit = Limit::new("plans", FixedWindow::per_day(1_000))
        .metric_detail(|head| head.header("x-plan").map(str::to_owned))
        .size_by(|head| head.header("x-pro").map(|_| FixedWindow::per_day(10_000).into()));
    let recorder = Arc::new(MetricsRecorder::new());
    let layer = RateLimitLayer::builder([limit]).recorder(recorder).build();
    let service = layer.layer(hello());
    for plan in 0..150 {
        ask(&service, with(&[("x-plan", &plan.to_string())])).await;
        ask(&service, with(&[("x-plan", "7"), ("x-pro", "1")])).await;
    }
    ask(&service, with(&[])).await;
    let series = series(&exporter.snapshotter());
    for (labels, value) in [
        ("limit=plans,detail=3,outcome=allowed,decided_by=memory", 1.0),
        ("limit=plans,detail=7,outcome=allowed,decided_by=memory", 151.0),
        ("limit=plans,detail=other,outcome=allowed,decided_by=memory", 50.0),
        ("limit=plans,outcome=allowed,decided_by=memory", 1.0),
    ] {
        let name = format!("decisions_total{{{labels}}}");
        assert_eq!(series.get(&name), Some(&value), "{name} in {series:#?}");
    }
    let details = series.keys().filter(|name| name.starts_with("decisions_total") && name.contains("detail=")).count();
    assert_eq!(details, 101);
}
