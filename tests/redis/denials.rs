//! Cached denials of the Redis store, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::calls::Calls;
use support::limits::{Patient, acquire_costs};
use support::redis_server::RedisServer;
use support::split_mix::Random;
use support::store_fixture::{connect, midnight};
use support::time::{HOUR, MICRO, MIDNIGHT};
use tower_ratelimit::DecidedBy;
use tower_ratelimit::{
    Algorithm, BreakerState, Builder, Clock, Decision, Event, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit,
    Limiter, ManualClock, MemoryStore, Receipt, RedisStore, SlidingLog, SlidingWindow, SlidingWindowCounter,
    StoreErrorKind, Timestamp, TokenBucket,
};

fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 8] {
    [
        ("fixed_window", FixedWindow::new(tokens, period).into()),
        ("sliding_log", SlidingLog::new(tokens, period).into()),
        ("sliding_window", SlidingWindow::new(tokens, period).into()),
        ("sliding_window_counter", SlidingWindowCounter::new(tokens, period).into()),
        ("token_bucket", TokenBucket::new(tokens, tokens, period).into()),
        ("token_bucket-at-intervals", TokenBucket::new(tokens, tokens, period).at_intervals().into()),
        ("leaky_bucket", LeakyBucket::new(tokens, tokens, period).into()),
        ("leaky_bucket_queue", LeakyBucketQueue::new(tokens, tokens, period).into()),
    ]
}

/// A server with a store.
struct Setup {
    server: RedisServer,
    store: RedisStore,
}

impl Setup {
    async fn new() -> Self {
        let server = RedisServer::start();
        let store = connect(&server).await;
        Self { server, store }
    }

    fn builder(&self, algorithm: impl Into<Algorithm>) -> Builder {
        Limiter::builder(Limit::new("limit", algorithm)).patient().store(self.store.clone())
    }

    fn limiter(&self, algorithm: impl Into<Algorithm>) -> Limiter {
        self.builder(algorithm).build()
    }

    /// Returns the number of script calls.
    fn calls(&self) -> u64 {
        self.server.calls("evalsha")
    }
}

async fn acquire(limiter: &Limiter, cost: u64) -> Decision {
    limiter.acquire("key", cost).await.expect("a decision")
}

/// Takes all tokens.
async fn exhaust(limiter: &Limiter) {
    let mut denied = false;
    for _ in 0..20 {
        denied |= !acquire(limiter, 1).await.is_allowed();
    }
    assert!(denied);
}

#[tokio::test]
async fn a_flood_of_denied_requests_rarely_reaches_redis() {
    let setup = Setup::new().await;
    for (name, algorithm) in all(5, HOUR) {
        let limiter = setup.limiter(algorithm);
        exhaust(&limiter).await;
        let (before, started) = (setup.calls(), Instant::now());
        for _ in 0..2_000 {
            assert!(!acquire(&limiter, 1).await.is_allowed());
            assert!(!limiter.peek("key", 1).await.expect("a decision").is_allowed());
        }
        let asked = setup.calls() - before;
        let most = 1 + started.elapsed().as_secs();
        assert!(asked <= most, "{name}: {asked} calls for 4,000 denials");
        // Explanations use the cached denial, which may expire in between.
        let mut deciders = Vec::new();
        for _ in 0..3 {
            assert!(!acquire(&limiter, 1).await.is_allowed());
            deciders.push(limiter.explain("key", 1).await.decided_by);
        }
        assert!(deciders.contains(&Some(DecidedBy::RememberedDenial)), "{name}: {deciders:?}");
        limiter.reset("key").await.expect("a reset");
    }
}

/// A shared limit is exhausted, and denies each client on its own first request.
#[tokio::test]
async fn a_flood_from_many_clients_rarely_reaches_redis() {
    let setup = Setup::new().await;
    let limits = [Limit::new("all", FixedWindow::per_day(5)), Limit::new("own", FixedWindow::per_day(100))];
    let limiter = Limiter::builder(limits).patient().store(setup.store.clone()).build();
    let acquire = async |client: u32| limiter.acquire_charges(&[(&"all", 1), (&client, 1)]).await.expect("a decision");
    for _ in 0..5 {
        assert!(acquire(0).await.is_allowed());
    }
    let (before, started) = (setup.calls(), Instant::now());
    for _ in 0..50 {
        for client in 0..20 {
            assert!(!acquire(client).await.is_allowed());
        }
    }
    let asked = setup.calls() - before;
    assert!(asked <= 20 * (1 + started.elapsed().as_secs()), "{asked} calls for 1,000 denials");
}

#[tokio::test]
async fn a_cost_over_the_capacity_is_decided_once() {
    let setup = Setup::new().await;
    let limiter = setup.limiter(FixedWindow::per_day(5));
    let (before, started) = (setup.calls(), Instant::now());
    for _ in 0..100 {
        let decision = acquire(&limiter, 6).await;
        assert!(!decision.is_allowed() && decision.retry_after().is_none());
        assert_eq!(decision.outcomes()[0].remaining(), 5);
    }
    let asked = setup.calls() - before;
    assert!(asked <= 1 + started.elapsed().as_secs(), "{asked} calls");
    assert!(acquire(&limiter, 5).await.is_allowed());
}

#[tokio::test]
async fn without_cached_denials_redis_decides_every_request() {
    let mut setup = Setup::new().await;
    setup.store = setup.store.clone().remember_denials(Duration::ZERO);
    let limiter = setup.limiter(FixedWindow::per_day(1));
    exhaust(&limiter).await;
    let before = setup.calls();
    exhaust(&limiter).await;
    assert_eq!(setup.calls() - before, 20);
}

#[tokio::test]
async fn a_request_at_the_announced_instant_is_allowed() {
    let mut setup = Setup::new().await;
    let clock = midnight();
    setup.store = setup.store.clone().clock(clock.clone());
    for (name, algorithm) in all(5, HOUR) {
        let limiter = setup.limiter(algorithm);
        clock.advance(2 * HOUR);
        exhaust(&limiter).await;
        let wait = acquire(&limiter, 1).await.retry_after().expect("a wait");
        let (before, started) = (setup.calls(), Instant::now());
        clock.advance(wait - MICRO);
        let decision = acquire(&limiter, 1).await;
        assert_eq!(decision.retry_after(), Some(MICRO), "{name}");
        assert_eq!(decision.outcomes()[0].more_after(), Some(MICRO), "{name}");
        assert!(setup.calls() == before || started.elapsed() > Duration::from_millis(500), "{name}");
        clock.advance(MICRO);
        assert!(acquire(&limiter, 1).await.is_allowed(), "{name}");
    }
}

/// By the clock of Redis, of which the test only knows bounds.
#[tokio::test]
async fn a_request_after_the_last_announced_wait_is_allowed() {
    let setup = Setup::new().await;
    let limiter = setup.limiter(TokenBucket::new(1, 1, Duration::from_millis(20)));
    for round in 0..50 {
        assert!(acquire(&limiter, 1).await.is_allowed(), "round {round}");
        let mut back = Instant::now();
        for _ in 0..200 {
            let decision = acquire(&limiter, 1).await;
            // An allowed request is refunded, so that the next one is allowed.
            let Some(wait) = decision.retry_after() else {
                limiter.refund(decision.into_receipt()).await.expect("a refund");
                break;
            };
            back = Instant::now() + wait;
        }
        while Instant::now() < back {
            std::hint::spin_loop();
        }
    }
}

/// A bug of other systems: a denial persists after a refund, ...
#[tokio::test]
async fn a_refund_is_available_at_once() {
    let setup = Setup::new().await;
    for (name, algorithm) in all(5, HOUR) {
        let limiter = setup.limiter(algorithm);
        let receipt = acquire(&limiter, 1).await.into_receipt();
        exhaust(&limiter).await;
        // Only the last slot of a queue can be refunded.
        let queues = name == "leaky_bucket_queue";
        limiter.refund(receipt).await.expect("a refund");
        assert_eq!(acquire(&limiter, 1).await.is_allowed(), !queues, "{name}");
        limiter.reset("key").await.expect("a reset");
    }
}

/// ... a reset, ...
#[tokio::test]
async fn a_reset_is_available_at_once() {
    let setup = Setup::new().await;
    for (name, algorithm) in all(5, HOUR) {
        let limiter = setup.limiter(algorithm);
        for _ in 0..3 {
            exhaust(&limiter).await;
            limiter.reset("key").await.expect("a reset");
            assert!(acquire(&limiter, 5).await.is_allowed(), "{name}");
            limiter.reset("key").await.expect("a reset");
        }
    }
}

/// ... for a smaller cost, ...
#[tokio::test]
async fn a_smaller_cost_is_allowed_after_a_denied_one() {
    let setup = Setup::new().await;
    for (name, algorithm) in all(5, HOUR) {
        let limiter = setup.limiter(algorithm);
        assert!(acquire(&limiter, 3).await.is_allowed());
        for _ in 0..3 {
            assert!(!acquire(&limiter, 5).await.is_allowed(), "{name}");
        }
        assert!(acquire(&limiter, 2).await.is_allowed(), "{name}");
        limiter.reset("key").await.expect("a reset");
    }
}

/// ... or once the limit is raised.
#[tokio::test]
async fn a_raised_limit_is_available_at_once() {
    let setup = Setup::new().await;
    let bucket = |capacity| TokenBucket::new(capacity, 5, HOUR);
    let raised = all(9, HOUR).map(|(name, raised)| match name {
        // At another rate, the usage would count for more.
        "token_bucket" => bucket(9).into(),
        "token_bucket-at-intervals" => bucket(9).at_intervals().into(),
        "leaky_bucket" => LeakyBucket::new(9, 5, HOUR).into(),
        "leaky_bucket_queue" => LeakyBucketQueue::new(9, 5, HOUR).into(),
        _ => raised,
    });
    for ((name, algorithm), raised) in all(5, HOUR).into_iter().zip(raised) {
        let limiter = setup.limiter(algorithm);
        exhaust(&limiter).await;
        assert!(acquire(&setup.limiter(raised), 1).await.is_allowed(), "{name}");
        assert!(!acquire(&limiter, 1).await.is_allowed(), "{name}");
        limiter.reset("key").await.expect("a reset");
    }
}

/// Another process resets a key, here through another store.
#[tokio::test]
async fn a_reset_by_another_process_is_seen_soon() {
    let setup = Setup::new().await;
    let limiter = setup.limiter(FixedWindow::per_day(1));
    exhaust(&limiter).await;
    let another = connect(&setup.server).await;
    setup.builder(FixedWindow::per_day(1)).store(another).build().reset("key").await.expect("a reset");
    let started = Instant::now();
    while !acquire(&limiter, 1).await.is_allowed() {
        assert!(started.elapsed() < Duration::from_secs(20), "a day's denial outlives the reset");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Cached denials say nothing about whether Redis works. During an outage, denied keys are denied, and other requests
/// do not wait.
#[tokio::test]
async fn a_flood_of_the_denied_keeps_the_breaker_open_while_redis_is_down() {
    let setup = Setup::new().await;
    let closed = Arc::new(AtomicUsize::new(0));
    let counted = closed.clone();
    let store = setup.store.clone().remember_denials(Duration::from_secs(600));
    let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(1)))
        .store(store)
        .deadline(Duration::from_millis(300))
        .observe(move |event| {
            if let Event::BreakerChanged { state: BreakerState::Closed, .. } = event {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build();
    exhaust(&limiter).await;
    setup.server.pause();
    let other = || async { limiter.acquire("other", 1).await.map_err(|error| error.kind()) };
    while other().await.expect_err("Redis is down") != StoreErrorKind::BreakerOpen {}
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        assert!(!acquire(&limiter, 1).await.is_allowed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(other().await.expect_err("Redis is down"), StoreErrorKind::TimedOut, "none of them was the trial");
    assert_eq!(other().await.expect_err("Redis is down"), StoreErrorKind::BreakerOpen);
    assert_eq!(closed.load(Ordering::Relaxed), 0);
    setup.server.resume();
    let started = Instant::now();
    while other().await.is_err() {
        assert!(!acquire(&limiter, 1).await.is_allowed());
        assert!(started.elapsed() < Duration::from_secs(20), "it is back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stores with other keys do not share cached denials.
#[tokio::test]
async fn remembered_denials_are_separate_by_prefix_and_secret() {
    let setup = Setup::new().await;
    let limiter = setup.limiter(FixedWindow::per_day(1));
    exhaust(&limiter).await;
    for store in [setup.store.clone().prefix("another"), setup.store.clone().secret([7; 16])] {
        let other = setup.builder(FixedWindow::per_day(1)).store(store).build();
        assert!(acquire(&other, 1).await.is_allowed());
    }
}

/// Returns all fields of a decision.
fn reported(decision: &Decision) -> String {
    let outcomes = decision.outcomes().iter().map(|outcome| {
        let more = outcome.more_after();
        format!("{:?} {} {more:?} {:?}", outcome.verdict(), outcome.remaining(), outcome.reset_after())
    });
    format!("{} {:?} {:?}", decision.at().as_micros(), decision.verdict(), outcomes.collect::<Vec<_>>())
}

/// A bug of other systems: cached denials disagree with Redis. For random requests, a store with cached denials, one
/// without them, and the memory store agree.
#[tokio::test]
async fn cached_denials_agree_with_redis() {
    let setup = Setup::new().await;
    let (mut steps, mut denied, mut calls) = (0, 0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let period = Duration::from_micros([1_000, 1_000_000, 10_000_000][random.below(3) as usize]);
        let tokens = 1 + random.below(6) as u32;
        let limits: Vec<Limit> = (0..1 + random.below(3))
            .map(|index| {
                let limit = Limit::new(format!("{seed}-{index}"), all(tokens, period)[random.below(8) as usize].1);
                if random.below(3) == 0 { limit.quota_mode() } else { limit }
            })
            .collect();
        let clock = ManualClock::new(Timestamp::from_micros(MIDNIGHT + random.below(1 << 40)));
        // After a step back, stores differ in the states that had already expired.
        let steps_back = random.below(2) == 0;
        let builder = Limiter::builder(limits).patient();
        let asking = setup.store.clone().remember_denials(Duration::ZERO).prefix("asking").clock(clock.clone());
        let subjects = [
            builder.clone().store(setup.store.clone().clock(clock.clone())).build(),
            builder.clone().store(asking).build(),
            builder.store(MemoryStore::new().max_keys(100).clock(clock.clone())).build(),
        ];
        let subjects = if steps_back { &subjects[..2] } else { &subjects };
        let mut receipts: Vec<Vec<Receipt>> = Vec::new();
        let mut edge = Duration::ZERO;
        for step in 0..60 {
            match random.below(12) {
                0 | 1 => clock.advance(edge),
                2 => clock.advance(edge.saturating_sub(MICRO)),
                3 => clock.advance(period.mul_f64(random.below(1_000) as f64 / 900.0)),
                4 if steps_back => {
                    let back = random.below(period.as_micros() as u64);
                    clock.set(Timestamp::from_micros(clock.now().as_micros() - back));
                }
                _ => {}
            }
            let costs: Vec<u64> = subjects[0].limits().iter().map(|_| 1 + random.below(tokens.into())).collect();
            let what = random.below(16);
            let mut refunded = if (1..3).contains(&what) && !receipts.is_empty() {
                receipts.swap_remove(random.below(receipts.len() as u64) as usize)
            } else {
                Vec::new()
            };
            let mut decisions = Vec::new();
            for (index, subject) in subjects.iter().enumerate().rev() {
                let before = if index == 0 { setup.calls() } else { 0 };
                let decision = match what {
                    0 => subject.reset("key").await.map(|()| None),
                    1 | 2 if !refunded.is_empty() => {
                        subject.refund(refunded.pop().expect("a receipt")).await.map(|()| None)
                    }
                    3 => subject.peek("key", costs[0]).await.map(Some),
                    4..10 => subject.acquire("key", 1).await.map(Some),
                    10 => subject.acquire("key", u64::from(tokens) + 1).await.map(Some),
                    _ => acquire_costs(subject, "key", &costs).await.map(Some),
                };
                let Some(decision) = decision.expect("an answer") else { continue };
                if index == 0 {
                    calls += setup.calls() - before;
                }
                decisions.push(decision);
            }
            let Some(decision) = decisions.first() else { continue };
            for other in &decisions {
                assert_eq!(reported(decision), reported(other), "seed {seed}, step {step}: {:?}", subjects[0].limits());
            }
            steps += 1;
            denied += u64::from(!decision.is_allowed());
            edge = decision.retry_after().or(decision.outcomes()[0].more_after()).unwrap_or(edge);
            receipts.push(decisions.into_iter().map(Decision::into_receipt).rev().collect());
        }
    }
    println!("{steps} requests, {denied} denied, {calls} calls");
    assert!(denied > 2_000, "{denied} denials of {steps}");
    assert!(calls + 1_000 < steps, "{calls} calls for {steps} requests: hardly any denial was remembered");
}

/// On one thread, tasks with cached denials must yield to other tasks.
#[tokio::test]
async fn tasks_denied_in_a_loop_yield_to_others() {
    const LONG: Duration = Duration::from_secs(20);
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limit = Limit::new("limit", FixedWindow::new(1, 366 * 24 * HOUR));
    let limiter = Limiter::builder([limit]).patient().store(store.remember_denials(2 * LONG)).build();
    for allowed in [true, false] {
        assert_eq!(limiter.allows("denied", 1).await, allowed);
    }
    let is_served = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let looping: Vec<_> = (0..64)
        .map(|_| {
            let (limiter, is_served) = (limiter.clone(), is_served.clone());
            tokio::spawn(async move {
                while !is_served.load(Ordering::Relaxed) && began.elapsed() < LONG {
                    assert!(!limiter.allows("denied", 1).await);
                }
                is_served.load(Ordering::Relaxed)
            })
        })
        .collect();
    for key in 0..10_u64 {
        assert!(limiter.allows(key, 1).await);
    }
    is_served.store(true, Ordering::Relaxed);
    for task in looping {
        assert!(task.await.expect("a task"), "Redis is reached only once nobody is denied any more");
    }
}
