//! Many limits, of which few apply to a request.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{FixedWindow, Limit, LiveLimits, RateLimitLayer, key};

use crate::live::{app, are, by, left};
use support::answer::ask;
use support::store_fixture::{StoreFixture, get, on_both_stores, visit};

/// Returns rules with a limit for each user. The limit of user n allows n requests.
fn of_users(users: usize) -> String {
    // Another list with the same values.
    let others = "- key: method
  value: GET
  descriptors:
  - { key: user, value: nobody, rate_limit: { unit: day, requests_per_unit: 1 } }
";
    (1..=users).fold(format!("domain: d\ndescriptors:\n{others}"), |mut yaml, user| {
        let limit = format!("rate_limit: {{ name: n{user}, unit: day, requests_per_unit: {user} }}");
        writeln!(yaml, "- {{ key: user, value: 'u{user}', {limit} }}").unwrap();
        yaml
    })
}

/// An extractor that counts its calls.
fn counting() -> (Extractors, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    let user = key::from_fn(move |head| {
        asked.fetch_add(1, Ordering::Relaxed);
        head.header("x-user").map(str::to_owned)
    });
    (Extractors::new().register("user", user), count)
}

async fn hundreds_of_limits_of_a_file_are_searched_by_value(fixture: StoreFixture) {
    let (extractors, count) = counting();
    let limits = |users| rules::from_yaml(&of_users(users), &extractors).unwrap();
    let rules = LiveLimits::new(limits(700));
    let live = app(by(&rules, &fixture).build());
    // The limits of a layer without replacements are searched in the same way.
    let fixed = app(fixture.builder(limits(700)).build());
    for app in [&live, &fixed] {
        count.store(0, Ordering::Relaxed);
        for user in [700, 64, 399] {
            let remaining = visit(app, "/", &format!("u{user}")).await.remaining_of(&format!("n{user}"));
            assert_eq!(remaining, user - if std::ptr::eq(app, &live) { 1 } else { 2 });
        }
        assert!(left(&visit(app, "/", "u701").await).is_empty());
        assert_eq!(count.load(Ordering::Relaxed), 4, "once for each request");
    }
    rules.replace(limits(701)).unwrap();
    assert_eq!(left(&visit(&live, "/", "u701").await), are(&[("n701", 700)]));
    assert_eq!(left(&visit(&live, "/", "u64").await), are(&[("n64", 61)]));
}

async fn headers_list_limits_of_a_file_and_of_code_in_order(fixture: StoreFixture) {
    let later = key::from_async_fn(|head| std::future::ready(head.header("x-user").map(str::to_owned)));
    for extractors in [counting().0, Extractors::new().register("user", later)] {
        let mut limits = rules::from_yaml(&of_users(3), &extractors).unwrap();
        limits.insert(1, Limit::new("first", FixedWindow::per_day(9)));
        limits.push(Limit::new("last", FixedWindow::per_day(9)).by(key::header("x-other")));
        let more =
            "domain: e\ndescriptors:\n- { key: user, rate_limit: { name: any, unit: day, requests_per_unit: 9 } }";
        limits.splice(2..2, rules::from_yaml(more, &extractors).unwrap());
        let limits = limits.into_iter().map(|limit| {
            let name = limit.name().to_owned();
            // The limit can still have a condition and its own key.
            if name == "n2" {
                limit.when(tower_ratelimit::when::from_fn(|head| head.header("x-two").is_some()))
            } else {
                limit
            }
        });
        let rules = LiveLimits::new(limits);
        let app = app(by(&rules, &fixture).build());
        let mut request = get("/", "u3");
        request.headers_mut().insert("x-other", HeaderValue::from_static("o"));
        let names = |answer: &support::answer::Answer| -> Vec<String> {
            left(answer).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&ask(&app, request).await), ["first", "any", "n3", "last"]);
        assert_eq!(visit(&app, "/", "u3").await.status, StatusCode::BAD_REQUEST);
        let mut request = get("/", "u2");
        request.headers_mut().insert("x-other", HeaderValue::from_static("o"));
        assert_eq!(names(&ask(&app, request).await), ["first", "any", "last"]);
        let mut request = get("/", "u2");
        request.headers_mut().insert("x-other", HeaderValue::from_static("o"));
        request.headers_mut().insert("x-two", HeaderValue::from_static("2"));
        assert_eq!(names(&ask(&app, request).await), ["first", "any", "n2", "last"]);
    }
}

/// Reports the thread that drops it.
struct Dropped(mpsc::Sender<ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

/// A request may use them last, and would take milliseconds to drop them.
#[tokio::test]
async fn thousands_of_replaced_limits_are_dropped_on_a_blocking_thread() {
    let (sender, receiver) = mpsc::channel();
    let dropped = Dropped(sender);
    let user = key::from_fn(move |head| {
        let _ = &dropped;
        head.header("x-user").map(str::to_owned)
    });
    let rules = LiveLimits::new([]);
    let app = app(RateLimitLayer::live_builder(&rules).build());
    let limits = rules::from_yaml(&of_users(1_001), &Extractors::new().register("user", user)).unwrap();
    rules.replace(limits).unwrap();
    assert_eq!(left(&visit(&app, "/", "u1001").await), are(&[("n1001", 1_000)]));
    rules.replace([]).unwrap();
    let dropper = tokio::task::spawn_blocking(move || receiver.recv_timeout(Duration::from_secs(60))).await.unwrap();
    assert_ne!(dropper.unwrap(), thread::current().id());
}

/// The most limits of a limiter are all enforced. More are rejected.
#[tokio::test]
async fn the_most_limits_possible_are_distinct() {
    let (extractors, _) = counting();
    let limits = |users| rules::from_yaml(&of_users(users), &extractors).unwrap();
    // The file also has a limit for another user.
    let app = app(RateLimitLayer::new(limits(8_191)));
    for user in [1, 8_191] {
        assert_eq!(left(&visit(&app, "/", &format!("u{user}")).await), are(&[(&format!("n{user}"), user - 1)]));
    }
    assert!(visit(&app, "/", "u1").await.is_denied());
    let error = RateLimitLayer::builder(limits(8_192)).try_build().map(drop).unwrap_err().to_string();
    assert!(error.contains("8193") && error.contains("8192"), "{error}");
}

on_both_stores!(hundreds_of_limits_of_a_file_are_searched_by_value, headers_list_limits_of_a_file_and_of_code_in_order,);

#[test]
fn at_most_64_may_apply_to_one_request() {
    let keys = |count: usize, more: &str| {
        let mut yaml = String::from("domain: d\ndescriptors:\n");
        for number in 0..count {
            let limit = "rate_limit: { unit: day, requests_per_unit: 9 }";
            writeln!(yaml, "- {{ key: header.h{number}, {limit} }}\n- {{ key: header.h{number}, value: x, {limit} }}")
                .unwrap();
        }
        rules::from_yaml(&(yaml + more), &Extractors::new()).unwrap()
    };
    assert_eq!(keys(64, "").len(), 128);
    assert!(LiveLimits::try_new(keys(64, "")).is_ok());
    assert!(RateLimitLayer::builder(keys(64, "")).try_build().is_ok());
    let rejected = "65 limits for one request are too many: use at most 64";
    assert_eq!(LiveLimits::try_new(keys(65, "")).unwrap_err().to_string(), rejected);
    assert_eq!(RateLimitLayer::builder(keys(65, "")).try_build().unwrap_err().to_string(), rejected);
    let within = "- key: header.h0
  value: y
  descriptors:
  - { key: header.a, rate_limit: { unit: day, requests_per_unit: 9 } }
  - { key: header.b, rate_limit: { unit: day, requests_per_unit: 9 } }
";
    assert_eq!(LiveLimits::try_new(keys(64, within)).unwrap_err().to_string(), rejected);
    // Limits that do not apply do not count.
    assert!(LiveLimits::try_new(keys(64, within).into_iter().take(129)).is_ok());
    // Limits that exclude each other count once.
    assert!(LiveLimits::try_new(keys(63, within)).is_ok());
}

/// Without a peer's address, all requests would share a bucket.
#[test]
fn limits_that_share_a_bucket_without_a_value_count_together() {
    let yaml = |policy: &str| {
        let limit = format!("rate_limit: {{ unit: day, requests_per_unit: 9, on_missing_key: {policy} }}");
        let of = |number: usize| format!("- {{ key: remote_address, value: 192.0.2.{number}, {limit} }}\n");
        let yaml = (0..65).map(of).collect::<String>();
        rules::from_yaml(&format!("domain: d\ndescriptors:\n{yaml}"), &Extractors::new()).unwrap()
    };
    assert!(LiveLimits::try_new(yaml("skip")).is_ok());
    assert!(LiveLimits::try_new(yaml("reject")).is_ok());
    assert!(LiveLimits::try_new(yaml("share")).is_err());
}
