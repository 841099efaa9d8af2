//! The pacing layer, in paused time.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use support::time::SECOND;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::limit::ConcurrencyLimitLayer;
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::client::{PaceLayer, RetryPolicy};
use tower_ratelimit::{AcquireError, CallError, Event, Recorder, key};

use super::{LATENCY, Upstream, get, status};

/// A server that denies the first request with a wait of seconds.
fn denying_first(seconds: &'static str) -> Upstream {
    let first = Arc::new(Mutex::new(true));
    Upstream::new(move |_| match std::mem::take(&mut *first.lock().unwrap()) {
        true => status(429, &[("retry-after", seconds)]),
        false => status(200, &[]),
    })
}

#[tokio::test(start_paused = true)]
async fn a_denial_pauses_all_calls_of_its_upstream_and_no_others() {
    let (denying, other) = (denying_first("5"), Upstream::new(|_| status(200, &[])));
    let (first, second) = (denying.client(), other.client());
    let route = service_fn(move |request: Request<String>| {
        let client = if request.uri().host() == Some("a") { first.clone() } else { second.clone() };
        client.oneshot(request)
    });
    let client = PaceLayer::new().layer(route);
    let begun = Instant::now();
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let calls = (0..100).map(|number| client.clone().oneshot(get(["http://a/", "http://b/"][number % 2])));
    calls.collect::<JoinSet<_>>().join_all().await;
    let paused_until = begun + 5 * SECOND + LATENCY;
    assert_eq!(denying.log().len(), 51);
    assert!(denying.log()[1..].iter().all(|arrival| arrival.at >= paused_until));
    assert_eq!(other.log().iter().filter(|arrival| arrival.at < paused_until).count(), 50);
}

/// Calls that were on their way when another was denied are denied later, and only prolong the pause.
#[tokio::test(start_paused = true)]
async fn no_call_leaves_before_the_end_of_the_longest_pause() {
    let times = Arc::new(Mutex::new(Instant::now()));
    let upstream = Upstream::new({
        let times = times.clone();
        move |request| {
            let mut allowed_at = times.lock().unwrap();
            let path = request.uri().path();
            assert!(path != "/later" || Instant::now() >= *allowed_at, "too early");
            match path {
                "/3" | "/7" | "/5" => {
                    let seconds: u64 = path[1..].parse().unwrap();
                    *allowed_at = (*allowed_at).max(Instant::now() + Duration::from_secs(seconds));
                    status(429, &[("retry-after", &path[1..])])
                }
                _ => status(200, &[]),
            }
        }
    });
    let service = service_fn(move |request: Request<String>| {
        let client = upstream.client();
        async move {
            let slow = request.uri().path() == "/7";
            let response = client.oneshot(request).await;
            sleep(if slow { 2 * SECOND } else { Duration::ZERO }).await;
            response
        }
    });
    let client = PaceLayer::new().layer(service);
    let calls = ["/7", "/3", "/5"].map(|path| client.clone().oneshot(get(&format!("http://a{path}"))));
    let mut denied: JoinSet<_> = calls.into_iter().collect();
    denied.join_next().await;
    sleep(2 * SECOND).await;
    for _ in 0..50 {
        client.clone().oneshot(get("http://a/later")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn calls_leave_in_their_order_and_a_dropped_one_leaves_no_hole() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let received = order.clone();
    let service = service_fn(move |request: Request<String>| {
        received.lock().unwrap().push((request.uri().path()[1..].parse::<usize>().unwrap(), Instant::now()));
        async { Ok::<_, &str>(status(200, &[])) }
    });
    let client = PaceLayer::new().layer(service);
    let mut calls = JoinSet::new();
    let mut handles = Vec::new();
    for number in 0..50 {
        handles.push(calls.spawn(client.clone().oneshot(get(&format!("http://a/{number}")))));
        tokio::task::yield_now().await;
    }
    // The head of the queue, and others.
    let sent = order.lock().unwrap().len();
    for dropped in [sent, 20, 21, 30] {
        handles[dropped].abort();
    }
    while calls.join_next().await.is_some() {}
    let order = order.lock().unwrap();
    let expected: Vec<usize> = (0..50).filter(|number| ![sent, 20, 21, 30].contains(number)).collect();
    assert_eq!(order.iter().map(|(number, _)| *number).collect::<Vec<_>>(), expected);
    let longest = order.windows(2).map(|pair| pair[1].1 - pair[0].1).max().unwrap();
    assert!(longest <= Duration::from_millis(51), "{longest:?}");
}

fn retry_after<T, E>(result: Result<T, CallError<E>>) -> Option<Duration> {
    match result {
        Err(CallError::Limited(AcquireError::Denied { retry_after, .. })) => retry_after,
        Err(CallError::Limited(AcquireError::Store(_)) | CallError::Service(_)) => panic!("another error"),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_and_the_wait_are_bounded() {
    let upstream = denying_first("30");
    let layer = PaceLayer::new().max_waiting(10).max_wait(40 * SECOND);
    let client = layer.layer(upstream.client());
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        waiting.spawn(client.clone().oneshot(get("http://a/")));
        tokio::task::yield_now().await;
    }
    let full = retry_after(client.clone().oneshot(get("http://a/")).await).unwrap();
    assert!(full >= 29 * SECOND, "{full:?}");
    assert!(retry_after(client.clone().oneshot(get("http://b/")).await).is_none(), "another upstream");
    assert!(waiting.join_all().await.into_iter().all(|answer| answer.is_ok()));

    let impatient = layer.max_wait(20 * SECOND).layer(denying_first("30").client());
    sleep(100 * SECOND).await;
    impatient.clone().oneshot(get("http://c/")).await.unwrap();
    let begun = Instant::now();
    assert!(retry_after(impatient.clone().oneshot(get("http://c/")).await) > Some(29 * SECOND));
    assert_eq!(begun.elapsed(), Duration::ZERO, "it fails at once");
    sleep(30 * SECOND).await;
    assert!(impatient.oneshot(get("http://c/")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_once_it_has_waited_for_too_long_behind_others() {
    let upstream = Upstream::new(|_| status(200, &[]));
    let client = PaceLayer::new().max_wait(SECOND).layer(upstream.client());
    let calls = (0..200).map(|_| client.clone().oneshot(get("http://a/")));
    let answers = calls.collect::<JoinSet<_>>().join_all().await;
    let sent = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((20..150).contains(&sent), "{sent}");
    assert_eq!(upstream.log().len(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_other_spellings_of_the_host_and_after_calls_to_many_others() {
    let client = PaceLayer::new().layer(denying_first("50").client());
    client.clone().oneshot(get("http://a/")).await.unwrap();
    for number in 0..1_500 {
        client.clone().oneshot(get(&format!("http://host-{number}/"))).await.unwrap();
    }
    for url in ["http://a/", "http://A:80/", "http://ann:secret@a./"] {
        timeout(5 * SECOND, client.clone().oneshot(get(url))).await.expect_err(url);
    }
}

/// Calls that wait when a long pause begins fail at once.
#[tokio::test(start_paused = true)]
async fn waiting_calls_fail_when_a_pause_exceeds_their_wait() {
    let client = PaceLayer::new().layer(denying_first("3600").client());
    let begun = Instant::now();
    let calls = (0..50).map(|_| client.clone().oneshot(get("http://a/")));
    let answers = calls.collect::<JoinSet<_>>().join_all().await;
    let denied = answers.into_iter().filter_map(retry_after).collect::<Vec<_>>();
    assert!(denied.len() >= 48 && denied.iter().all(|wait| *wait > 3_500 * SECOND), "{denied:?}");
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
}

/// In real time, in which each call takes a while.
#[tokio::test]
async fn a_call_that_is_not_held_has_not_waited() {
    let waits = Arc::new(Waits::default());
    let service = service_fn(async |_: Request<String>| Ok::<_, &str>(status(200, &[])));
    let client = PaceLayer::new().recorder(waits.clone()).layer(service);
    client.oneshot(get("http://a/")).await.unwrap();
    assert_eq!(*waits.0.lock().unwrap(), []);
}

/// A 503 says nothing about a limit: neither that there is none, nor that it was exceeded.
#[tokio::test(start_paused = true)]
async fn an_outage_changes_no_pace() {
    let upstream = Upstream::new(|_| status(503, &[]));
    let client = PaceLayer::new().layer(upstream.client());
    let calls = (0..200).map(|_| client.clone().oneshot(get("http://a/")));
    calls.collect::<JoinSet<_>>().join_all().await;
    let log = upstream.log();
    assert!(log.windows(2).all(|pair| pair[1].at - pair[0].at < SECOND), "there was a pause");
}

/// Layers of Tower that box errors fit around this one.
#[tokio::test(start_paused = true)]
async fn boxed_errors_fit_inside_and_outside() {
    let service = service_fn(async |_: Request<String>| Err::<Response<()>, BoxError>("connection refused".into()));
    let client =
        ServiceBuilder::new().timeout(SECOND).map_err(CallError::into_boxed).layer(PaceLayer::new()).service(service);
    let error = client.oneshot(get("http://a/")).await.unwrap_err();
    assert_eq!(error.to_string(), "connection refused");
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_service_are_told_apart_from_denials() {
    let service = service_fn(async |_: Request<String>| Err::<Response<()>, _>("connection refused"));
    let error = PaceLayer::new().layer(service).oneshot(get("http://a/")).await.unwrap_err();
    assert!(matches!(error, CallError::Service("connection refused")));
}

/// A limit of concurrency inside the layer has room while calls are paused.
#[tokio::test(start_paused = true)]
async fn paused_calls_do_not_occupy_the_inner_service() {
    let upstream = denying_first("30");
    let client =
        ServiceBuilder::new().layer(PaceLayer::new()).layer(ConcurrencyLimitLayer::new(1)).service(upstream.client());
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let mut paused = JoinSet::new();
    paused.spawn(client.clone().oneshot(get("http://a/")));
    sleep(SECOND).await;
    timeout(SECOND, client.oneshot(get("http://b/"))).await.expect("another upstream goes on").unwrap();
    assert_eq!(upstream.log().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_in_flight_leaves_no_trace() {
    let service = service_fn(async |request: Request<String>| match request.uri().path() {
        "/hangs" => pending().await,
        _ => Ok::<_, &str>(status(200, &[("ratelimit", r#""a";r=100;t=30"#)])),
    });
    let client = PaceLayer::new().layer(service);
    for _ in 0..100 {
        timeout(SECOND, client.clone().oneshot(get("http://a/hangs"))).await.unwrap_err();
    }
    // If those were still in flight, calls would be held for 30 seconds, because 100 remain.
    let begun = Instant::now();
    for _ in 0..3 {
        client.clone().oneshot(get("http://a/")).await.unwrap();
    }
    assert!(begun.elapsed() < 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn another_key_can_be_chosen() {
    let upstream = denying_first("30");
    let client = PaceLayer::new().by(key::header("authorization")).layer(upstream.client());
    let as_user = |user: &str| {
        let mut request = get("http://a/");
        request.headers_mut().insert("authorization", user.parse().unwrap());
        client.clone().oneshot(request)
    };
    as_user("ann").await.unwrap();
    timeout(SECOND, as_user("bob")).await.expect("bob does not wait for ann").unwrap();
    timeout(SECOND, as_user("ann")).await.unwrap_err();
}

/// Without a denial, what remains is spread over the time for which it must last.
#[tokio::test(start_paused = true)]
async fn calls_slow_down_before_they_are_denied() {
    let begun = Instant::now();
    let upstream = Upstream::new({
        let sent = Mutex::new(0_u64);
        let sent = Arc::new(sent);
        move |_| {
            let mut sent = sent.lock().unwrap();
            *sent += 1;
            let (remaining, left) = (30_u64.saturating_sub(*sent), 30 - begun.elapsed().as_secs().min(30));
            status(200, &[("x-ratelimit-remaining", &remaining.to_string()), ("x-ratelimit-reset", &left.to_string())])
        }
    });
    let client = PaceLayer::new().layer(upstream.client());
    let calls = (0..30).map(|_| client.clone().oneshot(get("http://a/")));
    calls.collect::<JoinSet<_>>().join_all().await;
    let halfway = upstream.log()[15].at - begun;
    assert!((10 * SECOND..20 * SECOND).contains(&halfway), "{halfway:?}");
}

#[tokio::test(start_paused = true)]
async fn hostile_headers_neither_panic_nor_hold_calls_without_bound() {
    let digits = "9".repeat(4_000);
    let list = vec![r#""a";r=0;t=999999999999999"#; 4_000].join(", ");
    let values = [
        "",
        "-1",
        "NaN",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        r#""a";r=0;t=999999999999999"#,
        r#""a";q=1;w=0;r=1;t=0"#,
        &digits,
        &list,
    ];
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "grpc-retry-pushback-ms"] {
        for value in values {
            for code in [200, 429, 503] {
                let headers = [("x-ratelimit-remaining", "0"), ("grpc-status", "8"), (name, value)];
                let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
                let upstream = Upstream::new(move |_| {
                    status(code, &headers.each_ref().map(|(name, value)| (name.as_str(), value.as_str())))
                });
                let client = PaceLayer::new().layer(upstream.client());
                client.clone().oneshot(get("http://a/")).await.unwrap();
                let begun = Instant::now();
                // It is sent, or fails with a time.
                if let Some(wait) = retry_after(client.clone().oneshot(get("http://a/")).await) {
                    assert!(wait <= 86_410 * SECOND, "{name}: {value}");
                }
                assert!(begun.elapsed() <= 61 * SECOND, "{name}: {value}");
            }
        }
    }
}

/// Counts waits of the layer.
#[derive(Default)]
struct Waits(Mutex<Vec<(&'static str, Duration)>>);

impl Recorder for Waits {
    fn event(&self, event: &Event<'_>) {
        let wait = match event {
            Event::CallDelayed { wait, .. } => ("layer", *wait),
            Event::CallRetried { wait, .. } => ("policy", *wait),
            _ => return,
        };
        self.0.lock().unwrap().push(wait);
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_policy_a_denied_request_waits_once() {
    let (upstream, waits) = (denying_first("30"), Arc::new(Waits::default()));
    let client = ServiceBuilder::new()
        .retry(RetryPolicy::new().recorder(waits.clone()))
        .layer(PaceLayer::new().recorder(waits.clone()))
        .service(upstream.client());
    let begun = Instant::now();
    let response = client.clone().oneshot(get("http://a/")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!((30 * SECOND..32 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let waits = waits.0.lock().unwrap();
    assert_eq!(waits.iter().map(|(by, _)| *by).collect::<Vec<_>>(), ["policy"]);
    assert!(waits[0].1 >= 30 * SECOND);
}
