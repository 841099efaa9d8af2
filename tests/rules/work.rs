//! The work for one request, however many rules read a value that the client repeats or the server lacks. Counted in
//! calls of extractors and conditions.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead, when};

use crate::service::Limited;

const RULES: usize = 2_000;

/// Counts calls.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Returns an extractor that counts its calls and finds the header `x-other`.
    fn extractor(&self) -> impl KeyExtractor + use<> {
        let calls = self.clone();
        key::from_fn(move |head| {
            calls.count();
            head.header("x-other").map(str::to_owned)
        })
    }

    /// Adds a condition that counts its calls to each limit.
    fn with_conditions(&self, limits: Vec<Limit>) -> Vec<Limit> {
        let condition = || {
            let calls = self.clone();
            when::from_fn(move |_| {
                calls.count();
                true
            })
        };
        limits.into_iter().map(|limit| limit.when(condition())).collect()
    }
}

/// Returns a file with a descriptor for each value of `key`, whose rest `rule` returns.
fn file(key: &str, rule: impl Fn(usize) -> String) -> String {
    (0..RULES).fold("domain: shop\ndescriptors:\n".to_owned(), |mut yaml, number| {
        writeln!(yaml, "- {{ key: {key}, value: '{}', {} }}", value(key, number), rule(number)).unwrap();
        yaml
    })
}

fn value(key: &str, number: usize) -> String {
    if key == "remote_address" { format!("10.0.{}.{}", number / 256, number % 256) } else { format!("v{number}") }
}

fn limit(options: &str) -> String {
    format!("rate_limit: {{ unit: day, requests_per_unit: 9{options} }}")
}

fn repeated() -> Request<()> {
    Request::get("/").header("x-tenant", "a").header("x-tenant", "b").header("x-other", "c").body(()).unwrap()
}

/// Returns the status of the response to a request.
fn status(limits: impl IntoIterator<Item = Limit>, request: Request<()>) -> u16 {
    Limited::of(limits.into_iter().collect()).send(request).status.as_u16()
}

#[test]
fn a_repeated_header_ends_the_search_at_the_first_limit() {
    let calls = Calls::default();
    let yaml = file("header.x-tenant", |_| limit(""));
    let limits = calls.with_conditions(rules::from_yaml(&yaml, &Extractors::new()).unwrap());
    assert_eq!(status(limits, repeated()), 400);
    assert!(calls.take() <= 3);
}

#[test]
fn a_repeated_header_runs_no_extractors_of_limits_that_come_later() {
    let calls = Calls::default();
    let nested = |number| format!("descriptors: [{{ key: other{number}, {} }}]", limit(""));
    let yaml = file("header.x-tenant", nested);
    let extractors = (0..RULES)
        .fold(Extractors::new(), |extractors, number| extractors.register(format!("other{number}"), calls.extractor()));
    let limits = rules::from_yaml(&yaml, &extractors).unwrap();
    assert_eq!(status(limits.clone(), repeated()), 400);
    assert_eq!(calls.take(), 1);
    // Nor does an asynchronous extractor elsewhere.
    let later = key::from_async_fn(|head| std::future::ready(head.header("x-other").map(str::to_owned)));
    let yaml = format!("{yaml}- {{ key: later, {} }}\n", limit(""));
    let limits = rules::from_yaml(&yaml, &extractors.register("later", later)).unwrap();
    let request = Request::get("/").header("x-tenant", "v7").header("x-other", "c").body(()).unwrap();
    assert_eq!(status(limits.clone(), request), 200);
    assert_eq!(calls.take(), 1, "extractors run only if their values matter");
    assert_eq!(status(limits, repeated()), 400);
    assert_eq!(calls.take(), 1);
}

#[test]
fn a_request_without_an_address_ends_the_search_at_the_first_limit() {
    let calls = Calls::default();
    let yaml = file("remote_address", |number| limit(&format!(", name: 'address {number}'")));
    let limits = calls.with_conditions(rules::from_yaml(&yaml, &Extractors::new()).unwrap());
    assert_eq!(status(limits, Request::new(())), 500);
    assert!(calls.take() <= 3);
}

/// With limits in code, which may be 64.
#[test]
fn no_key_is_extracted_after_the_first_limit_that_rejects() {
    let calls = Calls::default();
    let limit = |number: usize| Limit::new(format!("limit {number}"), FixedWindow::per_day(9));
    let others = (1..64).map(|number| limit(number).by(calls.extractor()));
    let limits = [limit(0).by(key::header("x-tenant"))].into_iter().chain(others);
    assert_eq!(status(limits, repeated()), 400);
    assert_eq!(calls.take(), 0);
}

#[test]
fn limits_that_reject_nothing_do_not_hide_one_that_does() {
    // In shadow mode, unlimited, left out of the limiter, or replaced by another rule.
    let shadow =
        file("header.x-tenant", |number| if number == RULES - 1 { limit("") } else { limit(", shadow_mode: true") });
    let unlimited = |number| {
        if number == RULES - 1 { limit("") } else { "rate_limit: { unlimited: true }".to_owned() }
    };
    let named = |number| limit(if number < RULES - 1 { ", name: common" } else { "" });
    let replacing = "- { key: header.x-other, rate_limit: { unlimited: true, replaces: [{ name: common }] } }\n";
    let read = |yaml: &str| rules::from_yaml(yaml, &Extractors::new()).unwrap();
    let all = read(&file("header.x-tenant", |_| limit("")));
    for limits in [
        read(&shadow),
        read(&file("header.x-tenant", unlimited)),
        read(&(file("header.x-tenant", named) + replacing)),
        all[RULES - 1..].to_vec(),
    ] {
        assert_eq!(status(limits.clone(), repeated()), 400);
        let others = limits.into_iter().map(Limit::shadow);
        assert_eq!(status(others, repeated()), 200);
    }
}

/// The position in the file decides, not that of the extractor.
#[test]
fn the_first_limit_that_rejects_determines_the_status() {
    let address = |number| format!("- {{ key: remote_address, value: 10.0.0.{number}, {} }}\n", limit(""));
    let tenant = |value| format!("- {{ key: header.x-tenant, value: {value}, {} }}\n", limit(""));
    let shadow = |line: String| line.replace("9 }", "9, shadow_mode: true }");
    for (lines, expected) in [
        ([address(1), tenant("a"), address(2)], 500),
        ([tenant("a"), address(1), tenant("b")], 400),
        ([shadow(address(1)), tenant("a"), address(2)], 400),
        ([shadow(tenant("a")), address(1), tenant("b")], 500),
        ([shadow(address(1)), shadow(tenant("a")), address(2)], 500),
    ] {
        let yaml = format!("domain: shop\ndescriptors:\n{}", lines.concat());
        let limits = rules::from_yaml(&yaml, &Extractors::new()).unwrap();
        assert_eq!(status(limits, repeated()), expected, "{yaml}");
    }
}

#[tokio::test]
async fn an_explanation_shows_all_limits_that_reject() {
    let yaml = file("header.x-tenant", |_| limit(""));
    let layer = RateLimitLayer::new(rules::from_yaml(&yaml, &Extractors::new()).unwrap());
    let explanation = layer.explain(&RequestHead::of(&repeated())).await;
    assert_eq!(explanation.limits.iter().filter(|limit| limit.denies()).count(), RULES);
}
