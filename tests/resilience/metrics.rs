//! Metrics as an exporter receives them.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use support::redis_server::Folder;
use support::split_mix::Random;
use tower::Layer;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{
    FixedWindow, LeakyBucketQueue, Limit, Limiter, ListAction, LiveLimits, MetricsRecorder, OnStoreError, Penalty,
    RateLimitLayer, Recorder, TokenBucket, key, when,
};

use crate::limited::{LOCALLY, acquire, ask, hello, limiter, ms, ten, with};
use support::faulty_store::{FaultyStore, Mode};

/// Returns the value of each series, by its name and labels. For histograms, it is the number of samples.
pub(crate) fn series(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
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
    // Without those of other outcomes, which are 0, but with the bytes in memory, and without the length of the queue.
    assert_eq!(series.values().filter(|value| **value > 0.0).count(), expected.len(), "{series:#?}");
}

#[tokio::test(start_paused = true)]
async fn rejections_are_counted_by_reason_and_list_matches_by_action() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limits = [
        Limit::new("users", FixedWindow::per_day(10)).by(key::header("x-user")),
        Limit::new("peers", FixedWindow::per_day(10)).by(key::peer_ip()),
    ];
    let layer = RateLimitLayer::builder(limits)
        .always_reject_with(ListAction::Shadow, when::header("x-list", "tried"))
        .always_reject_with(ListAction::TooManyRequests, when::header("x-list", "slow"))
        .always_reject(when::header("x-list", "blocked"))
        .recorder(MetricsRecorder::new())
        .build();
    for (headers, status) in [
        (&[][..], 400),
        (&[("x-user", "ann"), ("x-user", "bob")], 400),
        (&[("x-user", "ann")], 500),
        (&[("x-list", "tried")], 400),
        (&[("x-list", "slow")], 429),
        (&[("x-list", "blocked")], 403),
    ] {
        assert_eq!(ask(&layer.layer(hello()), with(headers)).await.status, status, "{headers:?}");
    }
    let mut series = series(&exporter.snapshotter());
    series.retain(|name, value| *value > 0.0 && !name.starts_with("memory_bytes"));
    let expected = [
        ("list_matches_total{action=forbidden}", 1.0),
        ("list_matches_total{action=shadow}", 1.0),
        ("list_matches_total{action=too_many_requests}", 1.0),
        ("rejections_total{reason=ambiguous_key}", 1.0),
        ("rejections_total{reason=listed}", 2.0),
        ("rejections_total{reason=missing_key}", 2.0),
        ("rejections_total{reason=no_peer_address}", 1.0),
    ];
    assert_eq!(series, expected.map(|(name, value)| (name.to_owned(), value)).into());
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
        ("breaker_state{node=store}", 1.0),
    ] {
        assert_eq!(outage.get(name), Some(&value), "{name} in {outage:#?}");
    }
    store.set(Mode::Works);
    while !matches!(acquire(&limiter).await.0, Ok(tower_ratelimit::DecidedBy::Store)) {
        tokio::time::sleep(ms(50)).await;
    }
    assert_eq!(series(&exporter.snapshotter())["breaker_state{node=store}"], 0.0);
}

#[tokio::test(start_paused = true)]
async fn policies_for_a_failing_store_are_counted() {
    for (policy, fallback, rejections) in
        [(OnStoreError::Reject, "rejected", 1.0), (OnStoreError::Allow, "allowed", 0.0)]
    {
        let exporter = DebuggingRecorder::new();
        let _installed = metrics::set_default_local_recorder(&exporter);
        let limits = RateLimitLayer::builder([ten()]).store(FaultyStore::new(Mode::Fails)).on_store_error(policy);
        ask(&limits.recorder(MetricsRecorder::new()).build().layer(hello()), with(&[])).await;
        let series = series(&exporter.snapshotter());
        assert_eq!(series[&format!("fallbacks_total{{to={fallback}}}")], 1.0);
        assert_eq!(series["store_errors_total{kind=failed}"], 1.0);
        assert_eq!(series.get("rejections_total{reason=store_failed}").copied().unwrap_or(0.0), rejections);
    }
}

#[tokio::test(start_paused = true)]
async fn only_decisions_that_waited_for_the_store_have_a_duration() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let store = FaultyStore::new(Mode::Remembered);
    let limiter = limiter(&store).recorder(MetricsRecorder::new()).build();
    assert!(acquire(&limiter).await.0.is_ok());
    let series = series(&exporter.snapshotter());
    assert_eq!(series["decisions_total{limit=ten,outcome=allowed,decided_by=remembered_denial}"], 1.0);
    assert!(!series.keys().any(|name| name.starts_with("store_duration_seconds")), "{series:#?}");
}

#[tokio::test(start_paused = true)]
async fn lockouts_are_counted_when_they_begin() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let penalty = Penalty::after(2, ms(60_000)).locked_out_for(ms(60_000));
    let limiter = Limiter::builder([ten().penalty(penalty)]).recorder(MetricsRecorder::new()).build();
    for _ in 0..4 {
        let _ = limiter.acquire("ann", 11).await.expect("the memory store does not fail");
    }
    assert_eq!(series(&exporter.snapshotter())["penalties_total{limit=ten}"], 1.0);
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
    assert_eq!(series["rules_loads_total{result=rejected}"], 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_rules_file_is_counted() {
    let exporter = Arc::new(DebuggingRecorder::new());
    let (recorder, local) = (MetricsRecorder::new(), exporter.clone());
    let folder = Folder::new();
    let path = folder.write("limits.yaml", "domain: shop");
    let limits = rules::watch(path, Extractors::new()).expect("a file");
    // Files are applied on another thread.
    let limits = limits.observe(move |event| metrics::with_local_recorder(&*local, || recorder.event(event)));
    folder.write("limits.yaml", "domain:");
    tokio::time::sleep(ms(5_000)).await;
    assert_eq!(series(&exporter.snapshotter())["rules_loads_total{result=rejected}"], 1.0);
    drop(limits);
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

#[tokio::test(start_paused = true)]
async fn labels_that_clients_choose_have_no_control_characters() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limit = Limit::new("paths", FixedWindow::per_day(10)).metric_detail(|head| Some(head.path().to_owned()));
    let service = RateLimitLayer::builder([limit]).recorder(MetricsRecorder::new()).build().layer(hello());
    let mut request = with(&[]);
    *request.uri_mut() = "/a\u{9b}2J\u{202e}".parse().expect("a path");
    ask(&service, request).await;
    let series = series(&exporter.snapshotter());
    let name = "tokens_total{limit=paths,detail=/a\\u{9b}2J\\u{202e}}";
    assert_eq!(series.get(name), Some(&1.0), "{series:#?}");
}

/// A query can't see the increment with which a series begins.
#[test]
fn counters_of_known_labels_exist_before_the_first_request() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let recorder = Arc::new(MetricsRecorder::new());
    let day = ms(86_400_000);
    let penalty = Penalty::after(2, day).locked_out_for(day);
    let limits = [
        ten(),
        Limit::new("hard", FixedWindow::per_day(9)).penalty(penalty),
        Limit::new("shadow", FixedWindow::per_day(9)).shadow(),
        Limit::new("soft", FixedWindow::per_day(9)).soft(50),
        Limit::new("quota", FixedWindow::per_day(9)).quota_mode(),
        Limit::new("queue", LeakyBucketQueue::per_day(9)),
    ];
    let _limiter = Limiter::builder(limits).recorder(recorder.clone()).build();
    let store = FaultyStore::new(Mode::Works);
    let live = LiveLimits::new([Limit::new("live", FixedWindow::per_day(9))]).recorder(recorder.clone());
    let _remote = Limiter::live_builder(&live).store(store).recorder(recorder).build();
    live.replace([Limit::new("later", FixedWindow::per_day(9))]).expect("limits");
    let series = series(&exporter.snapshotter());
    let known = |metric: &str| -> Vec<&str> {
        let zero = series.iter().filter(|(_, value)| **value == 0.0);
        zero.filter_map(|(name, _)| name.strip_prefix(metric)?.strip_prefix('{')?.strip_suffix('}')).collect()
    };
    let decisions = known("decisions_total");
    let names = ["hard", "live", "queue", "quota", "shadow", "soft", "ten"];
    for name in names {
        for outcome in ["allowed", "denied"] {
            let labels = format!("limit={name},outcome={outcome}");
            assert!(decisions.iter().any(|known| known.starts_with(&labels)), "{labels} in {decisions:#?}");
        }
    }
    assert_eq!(decisions.len(), 2 * names.len(), "{decisions:#?}");
    let names = names.map(|name| format!("limit={name}"));
    assert_eq!(known("near_limit_total"), names);
    assert_eq!(known("tokens_total"), names);
    assert_eq!(
        known("rejections_total"),
        ["ambiguous_key", "limited", "listed", "missing_key", "no_peer_address", "store_failed"]
            .map(|reason| format!("reason={reason}"))
    );
    assert_eq!(known("store_errors_total").len(), 8);
    assert_eq!(known("fallbacks_total"), ["allowed", "decided_locally", "rejected"].map(|to| format!("to={to}")));
    let actions = ["forbidden", "shadow", "too_many_requests"].map(|action| format!("action={action}"));
    assert_eq!(known("list_matches_total"), actions);
    assert_eq!(known("rules_loads_total"), ["result=rejected"], "{series:#?}");
    assert_eq!(series["rules_loads_total{result=applied}"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_process_without_requests_reports_current_gauges() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let recorder = Arc::new(MetricsRecorder::new());
    let gauge = || series(&exporter.snapshotter())["keys{}"];
    let limiter = Limiter::builder([ten()]).recorder(recorder.clone()).build();
    assert_eq!(gauge(), 0.0, "before the first request");
    for key in 0..7_u64 {
        let _ = limiter.acquire(key, 1).await.expect("the memory store does not fail");
    }
    // The last decisions came within a second of another.
    recorder.refresh();
    assert_eq!(gauge(), 7.0);
    // Of several limiters, the last one in use is reported.
    let later = Limiter::builder([ten()]).recorder(recorder.clone()).build();
    assert_eq!(gauge(), 0.0);
    drop(later);
    recorder.refresh();
    assert_eq!(gauge(), 7.0);
    drop(limiter);
    recorder.refresh();
    assert_eq!(gauge(), 0.0);
}
