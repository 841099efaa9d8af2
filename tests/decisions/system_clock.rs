//! The system's clocks: the machine is suspended, and its wall clock is corrected.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use http::{Request, Response};
use support::answer::ask;
use support::calls::Calls;
use support::limits::all;
use support::moved_clock::MovedClock;
use support::patient::{Patient, connected};
use support::redis_server::RedisServer;
use tower::{Layer, service_fn};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    Algorithm, CalendarWindow, CycleClock, FixedWindow, HeaderStyle, Limit, Limiter, MemoryStore, Penalty,
    RateLimitLayer, RedisConfig, RequestHead, ResetFormat, SlidingLog, Store, Weekday,
};

const MICROSECOND: Duration = Duration::from_micros(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a store of a single shard, which is soon swept.
fn memory() -> MemoryStore {
    MemoryStore::new().max_keys(4_000)
}

/// Runs a test in memory and on Redis, whose machine has the same clocks.
async fn on_each_store(remembered: Duration, test: impl AsyncFn(&str, Arc<dyn Store>)) {
    test("memory", Arc::new(memory())).await;
    let server = RedisServer::start();
    let store = connected(RedisConfig::node(server.url()).patient()).await;
    test("redis", Arc::new(store.remember_denials(remembered))).await;
}

fn limiter(store: Arc<dyn Store>, algorithm: impl Into<Algorithm>) -> Limiter {
    Limiter::builder(Limit::new("limit", algorithm)).store(store).patient().build()
}

/// Returns how many of 20 requests are allowed.
async fn allowed(limiter: &Limiter) -> usize {
    let mut allowed = 0;
    for _ in 0..20 {
        allowed += usize::from(limiter.allows("key", 1).await);
    }
    allowed
}

/// Lets the store drop what has expired: Redis when a key is read, and memory while other keys are added.
async fn drop_expired(limiter: &Limiter, name: &str) {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let _ = limiter.peek("key", 1).await.unwrap();
    for _ in 0..if name == "memory" { 600 } else { 0 } {
        let _ = limiter.acquire(KEYS.fetch_add(1, Ordering::Relaxed), 1).await.unwrap();
    }
}

#[test]
fn a_used_up_day_is_free_at_midnight_after_a_suspend() {
    MovedClock::run("system_clock::a_used_up_day_is_free_at_midnight_after_a_suspend", async |clock| {
        on_each_store(10 * HOUR, async |name, store| {
            for (zone, hours) in [("UTC", 4), ("Europe/Berlin", 3), ("America/New_York", 8)] {
                let day = limiter(store.clone(), CalendarWindow::daily(10).in_zone(zone));
                assert_eq!(allowed(&day).await, 10, "{name} {zone}");
                clock.suspend(hours * HOUR - MICROSECOND);
                assert_eq!(allowed(&day).await, 0, "{name} {zone}");
                clock.suspend(MICROSECOND);
                assert_eq!(allowed(&day).await, 10, "{name} {zone}");
                clock.suspend((24 - hours) * HOUR);
            }
        })
        .await;
    });
}

#[test]
fn every_period_passes_while_the_machine_is_suspended() {
    MovedClock::run("system_clock::every_period_passes_while_the_machine_is_suspended", async |clock| {
        on_each_store(10 * HOUR, async |name, store| {
            for (algorithm, limit) in all(10, HOUR) {
                let limiter = limiter(store.clone(), limit);
                assert_eq!(allowed(&limiter).await, 10, "{name} {algorithm}");
                let reset = limiter.peek("key", 1).await.unwrap().outcomes()[0].reset_after();
                clock.suspend(reset);
                assert_eq!(allowed(&limiter).await, 10, "{name} {algorithm}");
                clock.suspend(24 * HOUR);
            }
        })
        .await;
    });
}

#[test]
fn a_lockout_ends_while_the_machine_is_suspended() {
    MovedClock::run("system_clock::a_lockout_ends_while_the_machine_is_suspended", async |clock| {
        on_each_store(10 * HOUR, async |name, store| {
            let minute = Limit::new("logins", FixedWindow::per_minute(10)).penalty(Penalty::after(1, HOUR));
            let limiter = Limiter::builder([minute]).store(store).patient().build();
            assert_eq!(allowed(&limiter).await, 10, "{name}");
            clock.suspend(HOUR - MICROSECOND);
            assert_eq!(allowed(&limiter).await, 0, "{name}");
            clock.suspend(MICROSECOND);
            assert_eq!(allowed(&limiter).await, 10, "{name}");
        })
        .await;
    });
}

/// The client remembers it, whose machine is suspended, for no longer than the wait.
#[test]
fn a_remembered_denial_ends_while_the_machine_is_suspended() {
    MovedClock::run("system_clock::a_remembered_denial_ends_while_the_machine_is_suspended", async |clock| {
        on_each_store(10 * HOUR, async |name, store| {
            let limiter = limiter(store, SlidingLog::new(10, HOUR));
            assert_eq!(allowed(&limiter).await, 10, "{name}");
            for _ in 0..4 {
                clock.suspend(HOUR / 5);
                assert!(!limiter.allows("key", 1).await, "{name}");
            }
            clock.suspend(HOUR / 5);
            assert_eq!(allowed(&limiter).await, 10, "{name}");
        })
        .await;
    });
}

#[test]
fn a_correction_of_the_wall_clock_moves_no_period_in_memory() {
    MovedClock::run("system_clock::a_correction_of_the_wall_clock_moves_no_period_in_memory", async |clock| {
        for (algorithm, limit) in all(10, HOUR).into_iter().filter(|(name, _)| *name != "calendar_window") {
            let limiter = limiter(Arc::new(memory()), limit);
            assert_eq!(allowed(&limiter).await, 10, "{algorithm}");
            for forward in [HOUR, 1_000 * 24 * HOUR] {
                clock.step_forward(forward);
                drop_expired(&limiter, "memory").await;
                assert_eq!(allowed(&limiter).await, 0, "{algorithm}");
                clock.step_back(2 * forward);
                drop_expired(&limiter, "memory").await;
                assert_eq!(allowed(&limiter).await, 0, "{algorithm}");
                clock.step_forward(forward);
            }
            let reset = limiter.peek("key", 1).await.unwrap().outcomes()[0].reset_after();
            clock.suspend(reset);
            assert_eq!(allowed(&limiter).await, 10, "{algorithm}");
        }
    });
}

/// A machine that starts with a wrong clock, for instance. The clock of periods keeps its own time, which is another by
/// years.
#[test]
fn calendar_windows_follow_corrections_of_the_wall_clock() {
    MovedClock::run("system_clock::calendar_windows_follow_corrections_of_the_wall_clock", async |clock| {
        on_each_store(Duration::ZERO, async |name, store| {
            let daily = CalendarWindow::daily(10).in_zone("UTC");
            for limits in [vec![daily.into()], vec![daily.into(), Algorithm::from(FixedWindow::new(1_000, 100 * HOUR))]]
            {
                let limits =
                    limits.into_iter().enumerate().map(|(index, limit)| Limit::new(format!("{name} {index}"), limit));
                let limiter = Limiter::builder(limits).store(store.clone()).patient().build();
                clock.step_forward(365 * 24 * HOUR);
                limiter.reset("key").await.unwrap();
                assert_eq!(allowed(&limiter).await, 10, "{name}");
                // Within the day.
                clock.step_back(HOUR);
                drop_expired(&limiter, name).await;
                assert_eq!(allowed(&limiter).await, 0, "{name}");
                clock.step_forward(3 * HOUR);
                drop_expired(&limiter, name).await;
                assert_eq!(allowed(&limiter).await, 0, "{name}");
                // To midnight, after which the wait of the next day is whole.
                clock.step_forward(2 * HOUR);
                assert_eq!(allowed(&limiter).await, 10, "{name}");
                let decision = limiter.acquire("key", 1).await.unwrap();
                assert_eq!(decision.retry_after(), Some(24 * HOUR), "{name}");
                assert_eq!(decision.at().as_micros() % 86_400_000_000, 0, "{name}");
                clock.step_forward(20 * HOUR);
            }
        })
        .await;
    });
}

/// A failover, or a correction by NTP.
#[test]
fn usage_outlives_a_step_back_by_up_to_a_second() {
    MovedClock::run("system_clock::usage_outlives_a_step_back_by_up_to_a_second", async |clock| {
        let server = RedisServer::start();
        let redis =
            Arc::new(connected(RedisConfig::node(server.url()).patient()).await.remember_denials(Duration::ZERO));
        let week = CalendarWindow::weekly(10, Weekday::Monday).into();
        let each = all(10, HOUR).into_iter().map(|(_, limit)| ("redis", redis.clone() as Arc<dyn Store>, limit));
        let memory: [(_, Arc<dyn Store>, Algorithm); 2] =
            [("memory", Arc::new(memory()), week), ("memory", Arc::new(memory().clock(CycleClock::new())), week)];
        for (name, store, limit) in each.chain(memory) {
            let limiter = limiter(store, limit);
            assert_eq!(allowed(&limiter).await, 10, "{limit}");
            let reset = limiter.peek("key", 1).await.unwrap().outcomes()[0].reset_after();
            clock.step_forward(reset + Duration::from_millis(900));
            drop_expired(&limiter, name).await;
            clock.step_back(Duration::from_millis(901));
            let wait = limiter.peek("key", 10).await.unwrap().retry_after();
            assert_eq!(wait, Some(Duration::from_millis(1)), "{limit}");
            clock.step_forward(24 * HOUR);
        }
    });
}

#[test]
fn epochs_in_headers_are_those_of_the_wall_clock_after_a_suspend() {
    MovedClock::run("system_clock::epochs_in_headers_are_those_of_the_wall_clock_after_a_suspend", async |clock| {
        on_each_store(10 * HOUR, async |name, store| {
            for limit in [CalendarWindow::daily(10).into(), Algorithm::from(FixedWindow::per_day(10))] {
                let limits = RateLimitLayer::builder(Limit::new("limit", limit)).store(store.clone()).patient();
                let limits = limits.headers([HeaderStyle::XRateLimit(ResetFormat::Epoch)]).build();
                let service = limits
                    .layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
                for _ in 0..2 {
                    let answer = ask(&service, Request::new(Body::empty())).await;
                    let now = UNIX_EPOCH.elapsed().unwrap().as_secs();
                    let midnight = (now / 86_400 + 1) * 86_400;
                    assert_eq!(answer.header("x-ratelimit-reset"), Some(&*midnight.to_string()), "{name} {limit}");
                    clock.suspend(100 * HOUR);
                }
            }
        })
        .await;
    });
}

#[test]
fn the_time_of_day_is_that_of_the_wall_clock() {
    MovedClock::run("system_clock::the_time_of_day_is_that_of_the_wall_clock", async |clock| {
        let night = when::time_of_day("UTC", "22:00", "6:00");
        let is_night = || night.holds(&RequestHead::of(&Request::new(())));
        assert!(!is_night());
        clock.suspend(2 * HOUR);
        assert!(is_night());
        clock.step_back(MICROSECOND);
        assert!(!is_night());
        clock.step_forward(8 * HOUR);
        assert!(is_night());
        clock.step_forward(MICROSECOND);
        assert!(!is_night());
    });
}
