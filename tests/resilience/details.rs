//! Details of requests in metrics, and sizes of limits for single requests.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::Request;
use metrics_util::debugging::DebuggingRecorder;
use tower::Layer;
use tower_ratelimit::{
    DecisionRecord, FixedWindow, Limit, LiveLimits, MetricsRecorder, OnMissingKey, Permit, RateLimitLayer, Recorder,
    RequestHead, key, when,
};

use crate::limited::{ask, hello, with};
use crate::metrics::series;

/// The details that were recorded.
#[derive(Default)]
struct Details(Mutex<Vec<Option<String>>>);

impl Recorder for Details {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let details = decision.limits().map(|limit| limit.detail.map(str::to_owned));
        self.0.lock().unwrap().extend(details);
    }
}

impl Details {
    fn take(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns a limit that is split by plan.
fn by_plan(name: &str) -> Limit {
    Limit::new(name, FixedWindow::per_day(1_000)).metric_detail(|head| head.header("x-plan").map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn later_charges_of_a_request_are_counted_under_its_detail() {
    let details = Arc::new(Details::default());
    let limits = RateLimitLayer::builder([by_plan("plans")]).permits().recorder(details.clone()).build();
    let handler = tower::service_fn(async |request: Request<()>| {
        let permit = Permit::of(request.extensions()).expect("a permit");
        assert!(permit.charge(2).await.expect("a decision").is_allowed());
        permit.settle(7).await.expect("a settlement");
        Ok::<_, Infallible>(http::Response::new(String::new()))
    });
    // The route costs one more, which its layer charges.
    let service = limits.layer(limits.cost(2).layer(handler));
    ask(&service, with(&[("x-plan", "pro")])).await;
    assert_eq!(details.take(), vec![Some("pro".to_owned()); 4]);
}

#[tokio::test(start_paused = true)]
async fn sizes_and_details_are_computed_only_for_limits_that_apply() {
    let (sizes, details) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let limit = |name: &str| {
        let (sizes, details) = (sizes.clone(), details.clone());
        Limit::new(name, FixedWindow::per_day(1_000))
            .size_by(move |_| {
                sizes.fetch_add(1, Ordering::Relaxed);
                Some(FixedWindow::per_day(2_000).into())
            })
            .metric_detail(move |_| {
                details.fetch_add(1, Ordering::Relaxed);
                Some("all".to_owned())
            })
    };
    let skipped = limit("no key").by(key::header("x-user")).on_missing_key(OnMissingKey::Skip);
    let pro = limit("pro").when(when::header("x-plan", "pro"));
    let layer = RateLimitLayer::builder([skipped, pro]).recorder(Arc::new(Details::default())).build();
    let service = layer.layer(hello());
    let calls = || [&sizes, &details].map(|calls| calls.swap(0, Ordering::Relaxed));

    ask(&service, with(&[("x-plan", "free")])).await;
    assert_eq!(calls(), [0, 0]);
    let answer = ask(&service, with(&[("x-plan", "pro")])).await;
    assert!(answer.header("ratelimit").is_some_and(|quota| quota.starts_with("\"pro\";r=1999;")));
    assert_eq!(calls(), [1, 1]);
    ask(&service, with(&[("x-plan", "pro"), ("x-user", "ann")])).await;
    assert_eq!(calls(), [2, 2]);
}

/// Returns the details that an exporter has for a limit.
fn exported(exporter: &DebuggingRecorder, limit: &str) -> BTreeSet<String> {
    let series = series(&exporter.snapshotter());
    let details = series.keys().filter_map(|name| {
        let (_, detail) = name.split_once(&format!("tokens_total{{limit={limit},detail="))?;
        Some(detail.trim_end_matches('}').to_owned())
    });
    details.collect()
}

#[tokio::test(start_paused = true)]
async fn requests_that_a_limit_does_not_apply_to_use_up_no_details() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let limit = by_plan("users").when(when::header("x-user", "ann"));
    let service = RateLimitLayer::builder([limit]).recorder(MetricsRecorder::new()).build().layer(hello());
    for plan in 0..150 {
        ask(&service, with(&[("x-plan", &plan.to_string())])).await;
    }
    assert_eq!(exported(&exporter, "users").len(), 0);
    ask(&service, with(&[("x-plan", "pro"), ("x-user", "ann")])).await;
    assert!(exported(&exporter, "users").iter().eq(["pro"]));
}

#[tokio::test(start_paused = true)]
async fn explanations_use_up_no_details() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let layer = RateLimitLayer::builder([by_plan("all")]).recorder(MetricsRecorder::new()).build();
    for plan in 0..150 {
        let request = Request::get("/").header("x-plan", plan.to_string()).body(()).unwrap();
        assert!(layer.explain(&RequestHead::of(&request)).await.is_allowed());
    }
    ask(&layer.layer(hello()), with(&[("x-plan", "pro")])).await;
    assert!(exported(&exporter, "all").iter().eq(["pro"]));
}

/// A limit that is removed and added again keeps its details, because an exporter keeps its series.
#[tokio::test(start_paused = true)]
async fn a_live_limit_has_at_most_100_details_in_metrics_through_all_replacements() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let rules = LiveLimits::new([by_plan("a"), by_plan("b")]);
    let service = RateLimitLayer::live_builder(&rules).recorder(MetricsRecorder::new()).build().layer(hello());
    for generation in 0..3 {
        for plan in 0..60 {
            ask(&service, with(&[("x-plan", &format!("{generation}-{plan}"))])).await;
        }
        rules.replace([by_plan("b")]).unwrap();
        ask(&service, with(&[("x-plan", "0-0")])).await;
        rules.replace([by_plan("b"), by_plan("a")]).unwrap();
    }
    for limit in ["a", "b"] {
        let details = exported(&exporter, limit);
        assert_eq!(details.len(), 101, "{limit}: {details:?}");
        assert!(details.contains("other"), "{limit}: {details:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detail_of_more_than_128_bytes_is_counted_as_other() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let layer = RateLimitLayer::builder([by_plan("all")]).recorder(MetricsRecorder::new()).build();
    let longest = "x".repeat(128);
    ask(&layer.layer(hello()), with(&[("x-plan", &longest)])).await;
    ask(&layer.layer(hello()), with(&[("x-plan", &format!("{longest}x"))])).await;
    assert!(exported(&exporter, "all").iter().eq(["other", &longest]));
}

#[tokio::test(start_paused = true)]
async fn other_recorders_receive_all_details_as_they_are() {
    let recorder = Arc::new(Details::default());
    let service = RateLimitLayer::builder([by_plan("all")]).recorder(recorder.clone()).build().layer(hello());
    let plans: Vec<String> = (0..150).map(|plan| format!("{plan:0200}")).collect();
    for plan in &plans {
        ask(&service, with(&[("x-plan", plan)])).await;
    }
    ask(&service, with(&[])).await;
    assert!(recorder.take().into_iter().eq(plans.into_iter().map(Some).chain([None])));
}
