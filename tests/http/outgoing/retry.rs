//! The retry policy, mostly in paused time.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, Version};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use support::time::SECOND;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::retry::RetryLayer;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::MetricsRecorder;
use tower_ratelimit::client::RetryPolicy;

use super::{LATENCY, Upstream, get, status};

/// A wait in seconds, and the status and the headers by which a server asks for it.
type Form = (u64, u16, &'static [(&'static str, &'static str)]);

/// All forms in which a server asks for a wait.
pub(super) const FORMS: [Form; 9] = [
    (2, 429, &[("retry-after", "2")]),
    (1, 503, &[("retry-after", "1")]),
    (7, 429, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), DATE]),
    (7, 429, &[("retry-after", "Sunday, 06-Nov-94 08:49:37 GMT"), DATE]),
    (7, 429, &[("retry-after", "Sun Nov  6 08:49:37 1994"), DATE]),
    (3, 429, &[("ratelimit", r#""a";r=0;t=1, "b";r=0;t=3, "c";r=5;t=60"#)]),
    (4, 429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4")]),
    (2, 200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "2000")]),
    (1, 200, &[("grpc-status", "8"), ("retry-after", "1")]),
];
const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:30 GMT");

/// A server that denies each first request, in all forms.
pub(super) fn denying_once() -> (Upstream, Arc<AtomicUsize>) {
    let early = Arc::new(AtomicUsize::new(0));
    let (counted, denied) = (early.clone(), Mutex::new(HashMap::new()));
    let denied = Arc::new(denied);
    let upstream = Upstream::new(move |request| {
        let number: usize = request.uri().path()[1..].parse().unwrap();
        let mut denied = denied.lock().unwrap();
        if let Some(allowed_at) = denied.get(&number) {
            counted.fetch_add(usize::from(Instant::now() < *allowed_at), Ordering::Relaxed);
            return status(200, &[]);
        }
        let (seconds, code, headers) = FORMS[number % FORMS.len()];
        denied.insert(number, Instant::now() + Duration::from_secs(seconds));
        status(code, headers)
    });
    (upstream, early)
}

#[tokio::test(start_paused = true)]
async fn none_of_10_000_retries_is_earlier_than_the_server_allows() {
    let (upstream, early) = denying_once();
    let policy = RetryPolicy::new().budget(1_000_000, 5);
    let client = RetryLayer::new(policy).layer(upstream.client());
    let calls = (0..10_000).map(|number| client.clone().oneshot(get(&format!("http://upstream/{number}"))));
    let answers = calls.collect::<JoinSet<_>>().join_all().await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().headers().is_empty()));
    assert_eq!(upstream.log().len(), 20_000);
    assert_eq!(early.load(Ordering::Relaxed), 0);
}

/// Returns the probability that uniform numbers between 0 and 1 deviate as much: the test of Kolmogorov and Smirnov.
fn probability(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let distance = |(index, sample): (usize, &f64)| {
        let index = index as f64;
        ((index + 1.0) / count - sample).max(sample - index / count)
    };
    let largest = samples.iter().enumerate().map(distance).fold(0.0, f64::max);
    let scaled = (count.sqrt() + 0.12 + 0.11 / count.sqrt()) * largest;
    let term = |k: i32| (-1_f64).powi(k - 1) * (-2.0 * f64::from(k * k) * scaled * scaled).exp();
    (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

/// The random numbers are real ones, so the test allows for what happens once in 10 million runs.
#[tokio::test(start_paused = true)]
async fn clients_that_were_denied_together_spread_evenly() {
    for (headers, wait) in [(&[("retry-after", "5")][..], 5 * SECOND), (&[], Duration::ZERO)] {
        let mut probabilities = Vec::new();
        for _ in 0..10 {
            let begun = Instant::now();
            let upstream =
                Upstream::new(
                    move |_| {
                        if begun.elapsed() <= LATENCY { status(429, headers) } else { status(200, &[]) }
                    },
                );
            // Each client has a policy of its own.
            let client = || RetryLayer::new(RetryPolicy::new()).layer(upstream.client());
            let calls = (0..1_000).map(|_| client().oneshot(get("http://upstream/")));
            calls.collect::<JoinSet<_>>().join_all().await;
            let first = begun + wait + 3 * LATENCY;
            let retries = upstream.log().into_iter().filter(|arrival| arrival.status == 200);
            let late = retries.map(|arrival| (arrival.at - first).as_secs_f64());
            probabilities.push(probability(late.collect()));
        }
        assert!(probabilities.iter().all(|p| *p > 1e-6), "{probabilities:?}");
        assert!(probabilities.iter().filter(|p| **p > 0.01).count() >= 6, "{probabilities:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_stays_within_the_budget() {
    let exporter = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&exporter);
    let upstream = Upstream::new(|_| status(429, &[]));
    let policy = RetryPolicy::new().recorder(MetricsRecorder::new());
    let client = RetryLayer::new(policy).layer(upstream.client());
    let mut calls = JoinSet::new();
    for _ in 0..6_000 {
        calls.spawn(client.clone().oneshot(get("http://upstream/")));
        sleep(Duration::from_millis(10)).await;
    }
    calls.join_all().await;
    let retries = upstream.log().len() - 6_000;
    // 10 a second for 60 seconds, and those of the 10 seconds before.
    assert!((500..=700).contains(&retries), "{retries}");
    let snapshot = exporter.snapshotter().snapshot().into_vec();
    let count = |label: &str| {
        let found = snapshot.iter().find(|(key, ..)| key.key().labels().any(|found| found.value() == label));
        match &found.unwrap().3 {
            DebugValue::Counter(count) => *count as usize,
            DebugValue::Histogram(samples) => samples.len(),
            DebugValue::Gauge(_) => panic!("a gauge"),
        }
    };
    assert_eq!((count("sent"), count("retry")), (retries, retries));
    assert!(count("budget_exhausted") > 5_000);
}

/// Each of `n` other responses allows one retry, and a policy with another budget has budgets of its own.
#[tokio::test(start_paused = true)]
async fn a_budget_grows_with_the_other_responses() {
    let base = RetryPolicy::new().max_attempts(2);
    for responses in [1, 2, 3, 5, 7] {
        let policy = base.clone().budget(0, responses);
        let upstream = Upstream::new(|request| match request.uri().path() {
            "/rejected" => status(429, &[]),
            _ => status(200, &[]),
        });
        let client = RetryLayer::new(policy).layer(upstream.client());
        let calls = (0..210).map(|_| client.clone().oneshot(get("http://upstream/")));
        calls.collect::<JoinSet<_>>().join_all().await;
        let calls = (0..300).map(|_| client.clone().oneshot(get("http://upstream/rejected")));
        calls.collect::<JoinSet<_>>().join_all().await;
        assert_eq!(upstream.log().len() - 510, 210 / responses as usize, "one for {responses}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_budgets_of_upstreams_are_separate() {
    let upstream = Upstream::new(|_| status(429, &[]));
    let client = RetryLayer::new(RetryPolicy::new().budget(1, 1_000).max_attempts(100)).layer(upstream.client());
    let mut sent = Vec::new();
    for host in ["a", "b"] {
        let before = upstream.log().len();
        let calls = (0..1_000).map(|_| client.clone().oneshot(get(&format!("http://{host}/"))));
        calls.collect::<JoinSet<_>>().join_all().await;
        sent.push(upstream.log().len() - before - 1_000);
    }
    // One a second, for at most two minutes, and those of 10 seconds.
    assert!(sent.iter().all(|retries| (10..=130).contains(retries)), "{sent:?}");
}

/// Returns the number of requests that a server gets until the response is returned, and the time that it takes.
async fn attempts(
    policy: RetryPolicy<String>,
    request: Request<String>,
    answer: (u16, &[(&str, &str)]),
) -> (usize, u64) {
    let (code, headers) = answer;
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let upstream = Upstream::new(move |_| {
        status(code, &headers.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>())
    });
    let begun = Instant::now();
    let response = RetryLayer::new(policy).layer(upstream.client()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), code);
    (upstream.log().len(), begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn retries_end_by_the_settings() {
    let policy = || RetryPolicy::new().backoff(Duration::from_millis(1));
    let after = |seconds: &'static str| (429, [("retry-after", seconds)]);
    for (policy, seconds, expected) in [
        (policy(), "1", (5, 4)),
        (policy().max_attempts(2), "1", (2, 1)),
        (policy().max_wait(5 * SECOND), "6", (1, 0)),
        (policy().max_wait(5 * SECOND), "5", (5, 20)),
        (policy(), "61", (1, 0)),
        (policy(), "60", (2, 60)),
        (policy().max_total(10 * SECOND), "4", (3, 8)),
        (policy().max_total(10 * SECOND), "11", (1, 0)),
    ] {
        let (code, headers) = after(seconds);
        assert_eq!(attempts(policy, get("http://upstream/"), (code, &headers)).await, expected, "{seconds} s");
    }
    for code in [200, 404, 500] {
        assert_eq!(attempts(policy(), get("http://upstream/"), (code, &[("retry-after", "1")])).await.0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_methods_are_repeated_unless_all_are() {
    let denial: (u16, &[(&str, &str)]) = (429, &[("retry-after", "1")]);
    let request = |method: Method| Request::builder().method(method).uri("http://a/").body("body".to_owned()).unwrap();
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
        assert_eq!(attempts(RetryPolicy::new(), request(method), denial).await.0, 5);
    }
    for method in [Method::POST, Method::PATCH] {
        assert_eq!(attempts(RetryPolicy::new(), request(method.clone()), denial).await.0, 1);
        assert_eq!(attempts(RetryPolicy::new().all_methods(), request(method), denial).await.0, 5);
    }
    let grpc = |pushback: &'static str| [("grpc-status", "8"), ("grpc-retry-pushback-ms", pushback)];
    for (pushback, expected) in [("1000", 5), ("-1", 1), ("soon", 1)] {
        let sent = attempts(RetryPolicy::new().all_methods(), request(Method::POST), (200, &grpc(pushback))).await;
        assert_eq!(sent.0, expected, "{pushback}");
    }
}

#[tokio::test(start_paused = true)]
async fn hostile_headers_neither_panic_nor_delay_for_longer_than_the_settings_allow() {
    let digits = "9".repeat(4_000);
    let list = vec![r#""a";r=0;t=999999999999999"#; 4_000].join(", ");
    let values = ["", "-1", "NaN", "inf", "1e400", "Fri, 31 Dec 9999 23:59:59 GMT", "\u{ff}", &digits, &list];
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "date", "grpc-retry-pushback-ms"]
    {
        for value in values {
            let headers =
                [("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), ("x-ratelimit-remaining", "0"), (name, value)];
            for code in [200, 429] {
                let headers = [&headers[..], &[("grpc-status", "8")]].concat();
                let (_, seconds) = attempts(RetryPolicy::new(), get("http://upstream/"), (code, &headers)).await;
                assert!(seconds <= 120, "{name}: {value}");
            }
        }
    }
}

/// A body that can be read once, as a stream.
struct Once(&'static str);

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_cannot_be_cloned_is_sent_once_with_its_body() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let received = bodies.clone();
    let service = service_fn(move |request: Request<Once>| {
        received.lock().unwrap().push(request.into_body().0);
        async { Ok::<_, Infallible>(status(429, &[("retry-after", "1")])) }
    });
    let clone_short = |body: &Once| (body.0.len() < 5).then_some(Once(body.0));
    let client = RetryLayer::new(RetryPolicy::with_clone_body(clone_short)).layer(service);
    for body in ["stream", "text"] {
        let response =
            client.clone().oneshot(Request::put("http://upstream/").body(Once(body)).unwrap()).await.unwrap();
        assert_eq!(response.status(), 429);
    }
    assert_eq!(*bodies.lock().unwrap(), ["stream", "text", "text", "text", "text", "text"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_keeps_the_whole_request() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let upstream = Upstream::new(move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert_eq!((request.method(), request.version()), (&Method::PUT, Version::HTTP_2));
        assert_eq!((request.uri().to_string(), request.body().as_str()), ("http://upstream/a?b".to_owned(), "body"));
        assert_eq!(request.headers()["x-a"], "1");
        assert_eq!(request.extensions().get(), Some(&7_u8));
        status(429, &[])
    });
    let request = Request::put("http://upstream/a?b").version(Version::HTTP_2).header("x-a", "1").extension(7_u8);
    let client = RetryLayer::new(RetryPolicy::new()).layer(upstream.client());
    client.oneshot(request.body("body".to_owned()).unwrap()).await.unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_is_not_repeated() {
    let upstream = Upstream::new(|_| status(429, &[("retry-after", "5")]));
    let client = RetryLayer::new(RetryPolicy::new()).layer(upstream.client());
    timeout(SECOND, client.oneshot(get("http://upstream/"))).await.unwrap_err();
    sleep(60 * SECOND).await;
    assert_eq!(upstream.log().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_service_are_returned() {
    let service = service_fn(async |_: Request<String>| Err::<Response<()>, _>("connection refused"));
    let error = RetryLayer::new(RetryPolicy::new()).layer(service).oneshot(get("http://upstream/")).await.unwrap_err();
    assert_eq!(error, "connection refused");
}

#[test]
fn invalid_settings_panic_with_a_remedy() {
    let check = |set: fn(RetryPolicy<String>) -> RetryPolicy<String>, message: &str| {
        let panic = std::panic::catch_unwind(|| set(RetryPolicy::new())).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref().copied()), Some(message));
    };
    check(|policy| policy.max_attempts(1), "max_attempts is 1: use at least 2, or leave the policy out");
    check(|policy| policy.max_wait(Duration::ZERO), "max_wait is 0ns: use more than 0, and at most a day");
    check(
        |policy| policy.max_total(Duration::MAX),
        "max_total is 18446744073709551615.999999999s: use more than 0, and at most a day",
    );
    check(|policy| policy.budget(1_000_001, 1), "min_per_second is 1000001: use at most 1,000,000");
    check(|policy| policy.budget(0, 0), "responses is 0: use 1 to 1,000");
}
