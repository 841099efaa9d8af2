//! Texts that clients, files and servers choose, where operators read them: they contain neither credentials nor
//! characters that a terminal or a log would interpret.

use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response};
use support::answer::ask;
use tower::Layer;
use tower_ratelimit::dry_run::{Comparison, DryRun};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::store::Node;
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    Limit, LiveLimits, Permit, RateLimitLayer, Recorder, Rejection, RequestHead, ResponseHead, Stats, StoreError,
    Timestamp, key,
};

use crate::service::{Hello, per_day};

/// A path with an escape code of one character, and marks that change the direction of text.
const PATH: &str = "/a\u{9b}2J\u{202e}\u{2066}\u{200f}";
const PRINTED: &str = "/a\\u{9b}2J\\u{202e}\\u{2066}\\u{200f}";

/// Checks that a text has no characters that are not printable, except for its line breaks.
#[track_caller]
fn assert_printable(text: &str, lines: usize) {
    let is_printable = |c: char| matches!(c, '\n' | '"' | '\'' | '\\') || c.escape_debug().count() == 1;
    assert!(text.chars().all(is_printable), "{text:?}");
    assert_eq!(text.lines().count(), lines, "{text:?}");
}

fn secret_request() -> Request<Body> {
    let request = Request::get("/reports?api_key=s3cr3t").header("authorization", "Bearer s3cr3t");
    request.header("cookie", "session=s3cr3t").body(Body::empty()).unwrap()
}

/// Keeps the debug output of rejections.
#[derive(Clone, Default)]
struct Rejections(Arc<Mutex<Vec<String>>>);

impl Recorder for Rejections {
    fn rejection(&self, rejection: &Rejection<'_>) {
        self.0.lock().unwrap().push(format!("{rejection:#?}"));
    }
}

#[tokio::test]
async fn debug_output_shows_no_credentials_of_requests_and_responses() {
    let rejections = Rejections::default();
    let limit = per_day("rows", 2);
    let limits = RateLimitLayer::builder(limit)
        .permits()
        .on_reject(|rejection| (rejection.status(), "denied"))
        .recorder(rejections.clone())
        .build();
    let handler = async |permit: Permit| {
        let error = permit.try_charge(9).await.unwrap_err();
        assert_eq!(error.response().status(), 429);
        format!("{error:?} {error:#?} {permit:?} {:?}", error.source())
    };
    let app: Router = Router::new().route("/reports", get(handler)).layer(limits.clone());
    let mut shown = vec![ask(&app, secret_request()).await.body];
    let service = limits.layer(Hello::default());
    for _ in 0..2 {
        let _ = ask(&service, secret_request()).await;
    }
    shown.extend(rejections.0.lock().unwrap().clone());
    assert_eq!(shown.len(), 3, "{shown:#?}");
    let request = secret_request();
    shown.push(format!("{:?}", RequestHead::of(&request)));
    let response = Response::builder().status(401).header("set-cookie", "session=s3cr3t").body(()).unwrap();
    shown.push(format!("{:?}", ResponseHead::of(&response)));
    for shown in &shown {
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
    assert!(shown[3].contains("GET") && shown[3].contains("/reports"), "{}", shown[3]);
    assert!(shown[4].contains("401"), "{}", shown[4]);
}

#[tokio::test]
async fn paths_are_printed_without_control_characters() {
    let run = |tokens| DryRun::new([per_day("paths", tokens).by(key::path())]);
    let mut comparison = Comparison::new(run(2), run(1));
    let request = Request::get(PATH).body(()).unwrap();
    let head = RequestHead::of(&request);
    for second in 0..3 {
        comparison.request(Timestamp::from_micros(second * 1_000_000), &head).await;
    }
    let text = comparison.to_string();
    // Six lines of the reports with their samples, two of the changes.
    assert_printable(&text, 10);
    assert!(text.contains(&format!("GET {PRINTED}")), "{text}");

    let request = Request::get("/a\u{202e}\u{2066}\u{200f}").body(()).unwrap();
    let layer = RateLimitLayer::new([per_day("paths", 1).by(key::path())]);
    let explanation = layer.explain(&RequestHead::of(&request)).await;
    assert_printable(&explanation.to_string(), 2);
    assert!(
        explanation.to_string().contains(&format!("by path {}, ", PRINTED.replace("\\u{9b}2J", ""))),
        "{explanation}"
    );
    for shown in [format!("{head:?}"), format!("{explanation:?}")] {
        assert_printable(&shown, 1);
    }
}

#[tokio::test]
async fn long_values_of_clients_are_printed_in_part() {
    let path = format!("/{}", "x".repeat(60_000));
    let request = Request::get(&path).header("x-user", &path).body(()).unwrap();
    let head = RequestHead::of(&request);
    let limits = || [per_day("a", 1).by((key::path(), key::header("x-user")))];
    let explanation = RateLimitLayer::new(limits()).explain(&head).await.reveal_keys();
    let mut run = DryRun::new(limits());
    for _ in 0..2 {
        run.request(Timestamp::EPOCH, &head).await;
    }
    for shown in [explanation.to_string(), run.report.to_string(), format!("{head:?}")] {
        assert!(shown.len() < 5_000, "{} bytes", shown.len());
    }
}

#[tokio::test]
async fn revealed_keys_and_custom_descriptions_are_printed_without_control_characters() {
    let mut request = Request::get("/").body(()).unwrap();
    request.headers_mut().insert("x-user", "ann\u{202e}\u{9b}".parse().unwrap());
    let condition = when::from_fn(|_| false).label("a\nb\u{1b}[2J");
    let limits =
        RateLimitLayer::builder([per_day("users", 1).by(key::header("x-user")), per_day("never", 1).when(condition)])
            .never_limit(when::from_fn(|_| false).label("c\nd\u{202e}"))
            .build();
    let text = limits.explain(&RequestHead::of(&request)).await.reveal_keys().to_string();
    assert_printable(&text, 4);
    assert!(text.contains("requires a\\nb\\u{1b}[2J") && text.contains("requires c\\nd\\u{202e}"), "{text}");
}

#[test]
fn names_in_files_are_printed_without_control_characters() {
    let yaml = r#"
"dom\e[2J\u202Eain": shop
domain: "shop\n1:1: all is well"
descriptors:
- { key: "a\nb\u202E\e[2J", rate_limit: { unit: day, requests_per_unit: 1 } }
- { key: path, value: "/\u202E\n", rate_limit: { unit: "day\n\x9B", requests_per_unit: 1 } }
- { key: method, "k\u2066\n": 1 }
"#;
    let error = rules::from_yaml(yaml, &Extractors::new()).unwrap_err();
    assert_eq!(error.problems().len(), 4, "{error}");
    assert_printable(&error.to_string(), 4);
    assert_printable(&format!("{error:?}"), 4);
    error.problems().iter().for_each(|problem| assert_printable(problem.message(), 1));

    let long = format!("domain: shop\ndescriptors:\n- {{ key: path, {}: 1 }}", "x".repeat(100_000));
    let error = rules::from_yaml(&long, &Extractors::new()).unwrap_err();
    assert!(error.to_string().len() < 5_000, "{} bytes", error.to_string().len());

    let error = rules::from_file("no\n\u{202e}/such.yaml", &Extractors::new()).unwrap_err();
    assert_printable(&error.to_string(), 1);

    let yaml = r#"{ domain: shop, descriptors: [{ key: path, value: "/\e[2J\u202E\n",
        rate_limit: { unit: day, requests_per_unit: 1 } }] }"#;
    let limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    assert_printable(&DryRun::new(limits.clone()).report.to_string(), 2);
    assert_printable(limits[0].name(), 1);
    assert_printable(&LiveLimits::new(limits).replace(long_names()).unwrap_err().to_string(), 1);
}

/// A limit from a file whose name has line breaks and whose cost is over its capacity.
fn long_names() -> Vec<Limit> {
    let limit = || per_day("a", 1);
    vec![limit(), limit()]
}

#[test]
fn errors_of_stores_are_printed_without_control_characters() {
    let error = StoreError::new("WRONGTYPE\r\nb\u{1b}[2J\u{202e}".to_owned()).at(Node::new("host\n\u{9b}:1"));
    let printed = "the rate limit store at host\\n\\u{9b}:1 could not decide: WRONGTYPE\\r\\nb\\u{1b}[2J\\u{202e}";
    assert_eq!(error.to_string(), printed);
    let shown: [&dyn Debug; 2] = [&error, &error.node()];
    shown.iter().for_each(|shown| assert_printable(&format!("{shown:?}"), 1));
}

#[tokio::test]
async fn displayed_keys_of_statistics_have_no_control_characters() {
    let stats = Stats::new().top_keys(3).display_keys(|_, head| Some(head.path().to_owned()));
    let limits = RateLimitLayer::builder([per_day("paths", 1).by(key::path())]);
    let service = limits.recorder(stats.clone()).build().layer(Hello::default());
    for _ in 0..2 {
        let _ = ask(&service, Request::get(PATH).body(()).unwrap()).await;
    }
    assert_eq!(stats.limits()[0].top_keys[0].key, PRINTED);
}
