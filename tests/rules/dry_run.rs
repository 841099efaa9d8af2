//! Dry runs of rules files against recorded requests.

use http::Request;
use tower_ratelimit::dry_run::{Comparison, DryRun};
use tower_ratelimit::key::{self, PeerAddr};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer, RequestHead, Stats, Timestamp, when};

fn rules(yaml: &str) -> DryRun {
    DryRun::new(rules::from_yaml(yaml, &Extractors::new().register("path", key::path())).unwrap())
}

fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_767_225_600_000_000 + seconds * 1_000_000)
}

fn request(path: &str, peer: Option<[u8; 4]>) -> Request<()> {
    let mut request = Request::get(path).body(()).unwrap();
    if let Some(peer) = peer {
        request.extensions_mut().insert(PeerAddr((peer, 50_000).into()));
    }
    request
}

const FILE: &str = "
domain: shop
descriptors:
- key: path
  value: /login
  descriptors:
  - key: header.x-user
    rate_limit: { name: login, unit: minute, requests_per_unit: 2 }
- key: path
  value: /search
  shadow_mode: true
  rate_limit: { unit: minute, requests_per_unit: 1 }
- key: path
  value: /pay
  rate_limit: { unit: minute, requests_per_unit: 9, key: [header.x-user], on_missing_key: reject }
";

#[tokio::test]
async fn each_rule_has_its_counts_and_the_first_denied_requests() {
    let mut run = rules(FILE);
    for (second, path, user) in [
        (0, "/login?token=s3cr3t", Some("ann")),
        (1, "/login", Some("ann")),
        (2, "/login?token=s3cr3t", Some("ann")),
        (3, "/login", Some("bob")),
        (4, "/search", None),
        (5, "/search", None),
        (6, "/pay", None),
        (7, "/about", None),
        (60, "/login", Some("ann")),
    ] {
        let mut request = request(path, None);
        if let Some(user) = user {
            request.headers_mut().insert("x-user", user.parse().unwrap());
        }
        let _ = run.request(seconds(second), &RequestHead::of(&request)).await;
    }
    // Fingerprints differ between runs.
    let key = &run.report.limits[0].samples[0].limits[0].key[0].to_string();
    assert!(key.starts_with("header x-user #"), "{key}");
    assert_eq!(
        run.report.to_string().replace(key, "KEY"),
        "\
1 of 9 requests denied, 1 rejected, 7 allowed, of which 1 without a limit
  login (path=/login > header.x-user): 1 of 5 requests denied
    2026-01-01 00:00:02 UTC GET /login, retry after 58 seconds; login, by KEY
  shop.path_/search (path=/search): 0 of 2 requests denied, 1 would be denied if it were enforced
    2026-01-01 00:00:05 UTC GET /search, retry after 55 seconds; shop.path_/search
  shop.path_/pay (path=/pay): 0 of 0 requests denied, 1 rejected without a key"
    );
}

#[tokio::test]
async fn a_report_keeps_few_samples_of_many_denials() {
    let run = |overage| DryRun::new([Limit::new("one", FixedWindow::per_day(1)).soft(overage)]);
    let mut comparison = Comparison::new(run(900), run(100));
    for second in 0..1_000 {
        comparison.request(seconds(second), &RequestHead::of(&request("/", None))).await;
    }
    // Overage is allowed.
    let report = &comparison.after.report.limits[0];
    assert_eq!((report.requests, report.allowed, report.denied), (1_000, 2, 998));
    assert_eq!(report.samples.len(), 5);
    assert_eq!((comparison.newly_denied.count, comparison.newly_denied.samples.len()), (8, 5));
}

#[tokio::test]
async fn json_of_samples_names_the_units_of_times() {
    let mut run = rules(FILE);
    for second in [0, 1] {
        let _ = run.request(seconds(second), &RequestHead::of(&request("/search", None))).await;
    }
    let json = serde_json::to_value(&run.report).unwrap();
    let samples = json["limits"].as_array().unwrap().iter().flat_map(|limit| limit["samples"].as_array().unwrap());
    let times: Vec<_> =
        samples.map(|sample| (sample["at_seconds"].as_f64(), sample["retry_after_seconds"].as_f64())).collect();
    assert_eq!(times, [(Some(1_767_225_601.0), Some(59.0))]);
}

#[tokio::test]
async fn a_report_follows_limits_that_are_replaced() {
    let limits = || ["one", "two"].map(|name| Limit::new(name, FixedWindow::per_day(9)));
    let live = LiveLimits::new(limits());
    let mut run = DryRun::from_builder(RateLimitLayer::live_builder(&live)).unwrap();
    for _ in 0..2 {
        let _ = run.request(seconds(0), &RequestHead::of(&request("/", None))).await;
        live.replace(limits().into_iter().rev()).unwrap();
    }
    let requests: Vec<_> = run.report.limits.iter().map(|limit| (&*limit.name, limit.requests)).collect();
    assert_eq!(requests, [("one", 2), ("two", 2)]);
}

#[tokio::test]
async fn a_comparison_lists_the_requests_that_are_decided_differently() {
    let file = |login: u32, search: u32| {
        rules(&format!(
            "
domain: shop
descriptors:
- {{ key: path, value: /login, rate_limit: {{ unit: minute, requests_per_unit: {login} }} }}
- {{ key: path, value: /search, rate_limit: {{ unit: minute, requests_per_unit: {search} }} }}
"
        ))
    };
    let mut comparison = Comparison::new(file(2, 1), file(1, 2));
    for (second, path) in [(0, "/login"), (1, "/login"), (2, "/login"), (3, "/search"), (4, "/search"), (5, "/search")]
    {
        comparison.request(seconds(second), &RequestHead::of(&request(path, None))).await;
    }
    assert_eq!((comparison.newly_denied.count, comparison.newly_allowed.count), (1, 1));
    let text = comparison.to_string();
    let expected = "newly denied: 1\n  2026-01-01 00:00:01 UTC GET /login, retry after 59 seconds; shop.path_/login\n\
                    newly allowed: 1\n  2026-01-01 00:00:04 UTC GET /search, retry after 56 seconds; shop.path_/search";
    assert!(text.ends_with(expected), "{text}");
    assert_eq!((comparison.before.report.denied, comparison.after.report.denied), (3, 3));
}

#[tokio::test]
async fn an_earlier_request_is_decided_at_the_time_of_its_predecessor() {
    let mut run = DryRun::new([Limit::new("one", FixedWindow::per_minute(1)).by(key::path())]);
    let requests = [(60, "/a", true), (59, "/b", true), (59, "/a", false), (119, "/b", false), (120, "/a", true)];
    for (second, path, is_allowed) in requests {
        let explanation = run.request(seconds(second), &RequestHead::of(&request(path, None))).await;
        assert_eq!(explanation.is_allowed(), is_allowed, "{second} {path}");
        assert_eq!(explanation.at, Some(seconds(second.max(60))), "{second} {path}");
    }
    let denied: Vec<_> = run.report.limits[0].samples.iter().map(|sample| sample.at).collect();
    assert_eq!(denied, [seconds(60), seconds(119)]);
}

#[tokio::test]
async fn recorders_of_the_layer_see_the_decisions() {
    let stats = Stats::new();
    let builder = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(1))]).recorder(stats.clone());
    let mut run = DryRun::from_builder(builder).unwrap();
    for second in [0, 1, 2] {
        let _ = run.request(seconds(second), &RequestHead::of(&request("/", None))).await;
    }
    let limits = stats.limits();
    assert_eq!((limits[0].allowed, limits[0].denied), (1, 2));
}

#[tokio::test]
async fn lists_and_costs_of_a_layer_apply() {
    let builder = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(10)).by(key::peer_ip())])
        .never_limit(when::route("/health"))
        .always_reject(when::route("/admin"))
        .cost_by(|head| if head.uri.path() == "/report" { 6 } else { 1 });
    let mut run = DryRun::from_builder(builder).unwrap();
    for path in ["/health", "/admin", "/report", "/report", "/"] {
        let _ = run.request(seconds(0), &RequestHead::of(&request(path, Some([192, 0, 2, 7])))).await;
    }
    let report = &run.report;
    assert_eq!(
        (report.requests, report.allowed, report.denied, report.rejected, report.unlimited),
        (5, 3, 1, 1, 1),
        "{report}"
    );
}
