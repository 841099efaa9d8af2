//! The pacing layer learns the limits of upstreams. Time is paused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::time::{DAY, MIDNIGHT};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_ratelimit::client::PaceLayer;
use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, TokenBucket};

use super::{LATENCY, Upstream, get, status};

const CALLS: usize = 10_000;

/// Makes calls to a server, by 500 tasks.
async fn call(upstream: &Upstream, count: usize) {
    let client = PaceLayer::new().max_wait(DAY).layer(upstream.client());
    let calls = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..500 {
        let (client, calls) = (client.clone(), calls.clone());
        tasks.spawn(async move {
            while calls.fetch_add(1, Ordering::Relaxed) < count {
                client.clone().oneshot(get("http://upstream/")).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// Makes 10,000 calls to a server. Returns the percentage that was denied, and the calls per second that were
/// allowed: of all time, and after 20 seconds.
async fn learn(limit: Limit, headers: Vec<HeaderStyle>, phase: Duration) -> (f64, f64, f64) {
    let upstream = Upstream::limited(limit, headers, MIDNIGHT + phase.as_micros() as u64);
    let begun = Instant::now();
    call(&upstream, CALLS).await;
    let log = upstream.log();
    assert_eq!(log.len(), CALLS);
    for (index, denial) in log.iter().enumerate().filter(|(_, arrival)| arrival.status == 429) {
        // Calls that left before the denial arrived at the client.
        let mut later = log[index..].iter().skip_while(|arrival| arrival.at < denial.at + 2 * LATENCY);
        let pause = Duration::from_secs(denial.wait.unwrap());
        assert!(later.next().is_none_or(|next| next.at >= denial.at + 2 * LATENCY + pause), "a call was too early");
    }
    let denied = log.iter().filter(|arrival| arrival.status == 429).count();
    let share_after = |start: Instant| {
        let allowed = log.iter().filter(|arrival| arrival.status == 200 && arrival.at >= start).count();
        allowed as f64 / (log[CALLS - 1].at - start).as_secs_f64()
    };
    let later = begun + Duration::from_secs(20);
    (denied as f64 * 100.0 / CALLS as f64, share_after(begun), share_after(later))
}

/// Learns a limit of 100 per second, with and without headers, from instants of its window in milliseconds. Less than 1
/// % of the calls must be denied. `all` and `later` are the least percentages of the limit: of all time, and after 20
/// seconds.
async fn check(limit: Limit, phases: &[u64], all: f64, later: f64) {
    for headers in [vec![], vec![HeaderStyle::IetfDraft11], vec![HeaderStyle::IetfDraft10]] {
        for phase in phases.iter().copied().map(Duration::from_millis) {
            let figures = learn(limit.clone(), headers.clone(), phase).await;
            // With headers, nothing has to be learned.
            let all = if headers.is_empty() { all } else { 95.0 };
            assert!(figures.0 < 1.0 && figures.1 >= all && figures.2 >= later, "{figures:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_a_bucket_is_learned() {
    check(Limit::new("bucket", TokenBucket::per_second(100).burst(20)), &[0], 95.0, 95.0).await;
}

/// Each denial while the limit is learned costs up to a second, a whole window.
#[tokio::test(start_paused = true)]
async fn the_rate_of_a_window_is_learned() {
    check(Limit::new("second", FixedWindow::per_second(100)), &[0, 300, 600, 900], 90.0, 95.0).await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_a_long_window_is_learned() {
    check(Limit::new("10 seconds", FixedWindow::new(1_000, Duration::from_secs(10))), &[0, 300], 95.0, 95.0).await;
}

/// The burst is small, or large.
#[tokio::test(start_paused = true)]
async fn limits_of_other_sizes_are_learned() {
    for (limit, rate, least) in [
        (Limit::new("130, 20 at once", TokenBucket::per_second(130).burst(20)), 130.0, 0.9),
        (Limit::new("100, 1 at once", TokenBucket::per_second(100).burst(1)), 100.0, 0.75),
        (Limit::new("10, 5 at once", TokenBucket::per_second(10).burst(5)), 10.0, 0.95),
        (Limit::new("600 a minute", FixedWindow::per_minute(600)), 10.0, 0.95),
    ] {
        for headers in [vec![], vec![HeaderStyle::IetfDraft11]] {
            let (denied, all, _) = learn(limit.clone(), headers, Duration::ZERO).await;
            assert!(denied < 1.0 && all / rate >= least, "{}: {denied} % denied, {all} a second", limit.name());
        }
    }
}

/// A bucket of 20 tokens has 100 per second, then 50, then 200.
#[tokio::test(start_paused = true)]
async fn a_limit_that_changes_is_learned_anew() {
    let begun = Instant::now();
    let bucket = Arc::new(Mutex::new((20.0, begun)));
    let upstream = Upstream::new(move |_| {
        let rate = match begun.elapsed().as_secs() {
            ..60 => 100.0,
            60..200 => 50.0,
            _ => 200.0,
        };
        let (mut bucket, now) = (bucket.lock().unwrap(), Instant::now());
        let tokens = f64::min(bucket.0 + (now - bucket.1).as_secs_f64() * rate, 20.0);
        let is_allowed = tokens >= 1.0;
        *bucket = (if is_allowed { tokens - 1.0 } else { tokens }, now);
        if is_allowed { status(200, &[]) } else { status(429, &[("retry-after", "1")]) }
    });
    call(&upstream, 50_000).await;
    let log = upstream.log();
    let share = |seconds: std::ops::Range<u64>, rate: f64| {
        let within = |at: Instant| seconds.contains(&(at - begun).as_secs());
        let allowed = log.iter().filter(|arrival| arrival.status == 200 && within(arrival.at)).count();
        allowed as f64 / (seconds.end - seconds.start) as f64 / rate
    };
    let shares = [share(20..60, 100.0), share(80..200, 50.0), share(330..370, 200.0)];
    assert!(shares.iter().all(|share| (0.9..=1.0).contains(share)), "{shares:.2?}");
    let denied = log.iter().filter(|arrival| arrival.status == 429).count();
    assert!(denied < 50, "{denied}");
}
