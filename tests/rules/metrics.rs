//! Fields of rules files that split the metrics of a limit.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use tower::util::service_fn;
use tower::{Layer, ServiceExt};
use tower_ratelimit::key::TrustedProxies;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{DecisionRecord, RateLimitLayer, Recorder, RequestHead, key};

/// The names and details of the limits that were decided.
#[derive(Default)]
struct Details(Mutex<Vec<(String, Option<String>)>>);

impl Recorder for Details {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let details = decision.limits().map(|limit| (limit.name.to_owned(), limit.detail.map(str::to_owned)));
        self.0.lock().unwrap().extend(details);
    }
}

/// Returns the names and details of the limits that decide about a request with these headers.
async fn details(yaml: &str, path: &str, headers: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
    details_by(&Extractors::new().register("path", key::path()), yaml, path, headers).await
}

async fn details_by(
    extractors: &Extractors,
    yaml: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Vec<(String, Option<String>)> {
    let limits = rules::from_yaml(yaml, extractors).unwrap();
    let recorder = Arc::new(Details::default());
    let layer = RateLimitLayer::builder(limits).recorder(recorder.clone()).build();
    let response = |_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) };
    let service = layer.layer(service_fn(response));
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = service.oneshot(request.body(String::new()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    std::mem::take(&mut recorder.0.lock().unwrap())
}

async fn detail(yaml: &str, path: &str, headers: &[(&str, &str)]) -> Option<String> {
    let [(_, detail)] = &details(yaml, path, headers).await[..] else { panic!("one limit decides") };
    detail.clone()
}

#[tokio::test]
async fn detailed_metric_splits_a_limit_by_all_values() {
    let yaml = "
domain: shop
descriptors:
- key: header.x-plan
  descriptors:
  - key: path
    value: /items/*
    detailed_metric: true
    rate_limit: { unit: day, requests_per_unit: 10 }
";
    let found = detail(yaml, "/items/7", &[("x-plan", "pro")]).await;
    assert_eq!(found.as_deref(), Some("header.x-plan_pro.path_/items/7"));
}

#[tokio::test]
async fn value_to_metric_splits_a_limit_by_the_values_of_its_descriptor() {
    let yaml = "
domain: shop
descriptors:
- key: header.x-plan
  value_to_metric: true
  descriptors:
  - key: path
    value: /items/*
    rate_limit: { unit: day, requests_per_unit: 10 }
";
    let found = detail(yaml, "/items/7", &[("x-plan", "pro")]).await;
    assert_eq!(found.as_deref(), Some("header.x-plan_pro.path_/items/*"));
}

#[tokio::test]
async fn values_that_share_a_bucket_share_their_metrics() {
    let yaml = "
domain: shop
descriptors:
- key: path
  value: /items/*
  share_threshold: true
  value_to_metric: true
  descriptors:
  - key: header.x-plan
    value_to_metric: true
    rate_limit: { unit: day, requests_per_unit: 10 }
";
    let found = detail(yaml, "/items/7", &[("x-plan", "pro")]).await;
    assert_eq!(found.as_deref(), Some("path_/items/*.header.x-plan_pro"));
}

#[tokio::test]
async fn addresses_are_shown_as_they_are_masked() {
    let yaml = "
domain: shop
descriptors:
- { key: client, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 10 } }
";
    let address = || key::from_fn(|head: &RequestHead<'_>| head.header("x-client")?.parse::<IpAddr>().ok());
    let by_hop = || TrustedProxies::hops(1).single_valued("x-client");
    let new = Extractors::new;
    for (extractors, address, shown) in [
        (new().register("client", by_hop()), "2001:db8:1:2::3", "2001:db8:1:2::/64"),
        (new().register_address("client", by_hop(), 48), "2001:db8:1:2::3", "2001:db8:1::/48"),
        (new().register_address("client", by_hop(), 48), "192.0.2.7", "192.0.2.7"),
        (new().register_address("client", address(), 48), "2001:db8:1:2::3", "2001:db8:1::/48"),
        (new().register_address("client", address(), 48), "::ffff:192.0.2.7", "192.0.2.7"),
    ] {
        let found = details_by(&extractors, yaml, "/", &[("x-client", address)]).await;
        assert_eq!(found, [("shop.client".to_owned(), Some(format!("client_{shown}")))]);
    }
}

#[tokio::test]
async fn a_missing_value_is_left_out() {
    let yaml = "
domain: shop
descriptors:
- key: header.x-plan
  value_to_metric: true
  rate_limit: { unit: day, requests_per_unit: 10, on_missing_key: share }
";
    assert_eq!(detail(yaml, "/", &[]).await.as_deref(), Some("header.x-plan"));
}

#[tokio::test]
async fn limits_with_exact_values_have_no_details() {
    let yaml = "
domain: shop
descriptors:
- key: path
  value: /items
  detailed_metric: true
  value_to_metric: true
  rate_limit: { unit: day, requests_per_unit: 10 }
- key: header.x-plan
  rate_limit: { unit: day, requests_per_unit: 10 }
";
    let found = details(yaml, "/items", &[("x-plan", "pro")]).await;
    assert_eq!(found, [("shop.path_/items".to_owned(), None), ("shop.header.x-plan".to_owned(), None)]);
}

#[tokio::test]
async fn details_read_values_only_for_rules_that_match() {
    let rules = (0..100).fold("domain: shop\ndescriptors:\n".to_owned(), |mut yaml, path| {
        let limit = "rate_limit: { unit: day, requests_per_unit: 10 }";
        let plan = format!("{{ key: plan, detailed_metric: true, {limit} }}");
        writeln!(yaml, "- {{ key: path, value: /{path}, descriptors: [{plan}] }}").unwrap();
        yaml
    });
    let count = Arc::new(AtomicUsize::new(0));
    let calls = count.clone();
    let plan = key::from_fn(move |head| {
        calls.fetch_add(1, Ordering::Relaxed);
        head.header("x-plan").map(str::to_owned)
    });
    let extractors = Extractors::new().register("path", key::path()).register("plan", plan);
    let recorder = Arc::new(Details::default());
    let limits = rules::from_yaml(&rules, &extractors).unwrap();
    let layer = RateLimitLayer::builder(limits).recorder(recorder.clone()).build();
    let service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    for (path, details, calls) in [("/other", 0, 0), ("/7", 1, 2)] {
        let request = Request::get(path).header("x-plan", "pro").body(()).unwrap();
        service.clone().oneshot(request).await.unwrap();
        assert_eq!(std::mem::take(&mut *recorder.0.lock().unwrap()).len(), details, "{path}");
        assert_eq!(count.swap(0, Ordering::Relaxed), calls, "{path}");
    }
}
