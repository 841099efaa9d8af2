//! Requests in flight in rules files.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::dry_run::DryRun;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Concurrency, Limit, RateLimitLayer, RequestHead, Timestamp};

/// Returns the limit of a `rate_limit` block.
fn limit(fields: &str) -> Limit {
    let yaml = format!("{{ domain: shop, descriptors: [{{ key: method, rate_limit: {{ {fields} }} }}] }}");
    rules::from_yaml(&yaml, &Extractors::new()).expect("valid rules").remove(0)
}

#[test]
fn the_time_to_live_has_the_default_of_the_code() {
    let eight = Concurrency::limit(8);
    for (fields, expected) in [
        ("concurrent: 8", eight),
        ("concurrent: 8, time_to_live: 10s", eight.time_to_live(Duration::from_secs(10))),
        ("concurrent: 8, soft: 50%, overridable: true, on_store_error: allow", eight),
        ("concurrent: 1_000, penalty: { denials: 5, within: 1m }", Concurrency::limit(1_000)),
    ] {
        assert_eq!(*limit(fields).algorithm(), expected.into(), "{fields}");
    }
}

/// Returns the time for which the first of two requests keeps the second one out, if its body is kept for `body`.
async fn held(fields: &str, body: Duration) -> Duration {
    let layer = RateLimitLayer::new([limit(fields)]);
    let service = layer.layer(service_fn(|_: Request<()>| async {
        sleep(Duration::from_millis(100)).await;
        Ok::<_, Infallible>(Response::new(String::from("hello")))
    }));
    let send = || service.clone().oneshot(Request::new(()));
    let began = tokio::time::Instant::now();
    let first = tokio::spawn({
        let first = send();
        async move {
            let response = first.await.expect("a response");
            assert_eq!(response.status(), StatusCode::OK);
            sleep(body).await;
        }
    });
    sleep(Duration::from_millis(10)).await;
    while send().await.expect("a response").status() == StatusCode::TOO_MANY_REQUESTS {
        sleep(Duration::from_millis(10)).await;
    }
    // The request that was allowed took a tenth of a second, too.
    let held = began.elapsed().saturating_sub(Duration::from_millis(100));
    first.await.expect("no panic");
    held
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_held_as_the_file_says() {
    let body = Duration::from_secs(60);
    for (fields, least, most) in [
        ("concurrent: 1", 60_100, 60_200),
        ("concurrent: 1, until: body", 60_100, 60_200),
        ("concurrent: 1, until: HEAD", 100, 200),
        ("concurrent: 1, longest_hold: 5s", 5_000, 5_100),
    ] {
        let held = held(fields, body).await.as_millis();
        assert!((least..=most).contains(&held), "{fields}: {held} ms");
    }
}

/// Nobody knows when recorded requests ended.
#[tokio::test]
async fn a_dry_run_denies_nothing_by_concurrency() {
    let mut run = DryRun::new([limit("concurrent: 1")]);
    for second in 0..5 {
        let _ = run.request(Timestamp::from_micros(second * 1_000_000), &RequestHead::of(&Request::new(()))).await;
    }
    assert_eq!((run.report.allowed, run.report.denied), (5, 0));
}
