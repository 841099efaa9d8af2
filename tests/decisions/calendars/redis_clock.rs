//! The clock of Redis determines the window, however wrong that of the client is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tower_ratelimit::{CalendarWindow, FixedWindow, Limit, Limiter, RedisConfig, Weekday};

use crate::calendars::dates::{Calendar, Dates};
use crate::calendars::{at, remaining, reset_after};
use support::calls::{Calls, Outcomes};
use support::patient::Patient;
use support::redis_server::RedisServer;

/// A proxy in front of a server. It adds a clock to calls that have none, so that the script uses another clock than
/// the client.
struct ClockProxy {
    port: u16,
    now: Arc<AtomicU64>,
    /// The advance of the clock from one call to the next.
    pace: Arc<AtomicU64>,
    server: RedisServer,
}

impl ClockProxy {
    async fn start() -> Self {
        let server = RedisServer::start();
        let to = server.port();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (now, pace) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let clock = (now.clone(), pace.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
                let (now, pace) = clock.clone();
                tokio::spawn(async move {
                    let mut calls = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from_client.read(&mut calls).await {
                        let calls = with_clock(
                            &calls[..length],
                            now.fetch_add(pace.load(Ordering::Relaxed), Ordering::Relaxed),
                        );
                        to_server.write_all(&calls).await.unwrap();
                    }
                });
            }
        });
        Self { port, now, pace, server }
    }

    async fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Limiter {
        let store = RedisConfig::node(format!("redis://127.0.0.1:{}", self.port)).patient().connect().await.unwrap();
        Limiter::builder(limits).patient().store(store).build()
    }

    /// Returns the number of script calls of `what`.
    async fn calls<T>(&self, what: impl Future<Output = T>) -> (u64, T) {
        let before = self.server.calls("evalsha");
        let result = what.await;
        (self.server.calls("evalsha") - before, result)
    }
}

/// Forwards calls, and replaces the empty first argument of a script with the clock.
fn with_clock(calls: &[u8], now: u64) -> Vec<u8> {
    const NONE: &[u8] = b"\r\n$0\r\n\r\n";
    let Some(found) = calls.windows(NONE.len()).position(|part| part == NONE) else { return calls.to_vec() };
    let mut changed = calls[..found].to_vec();
    changed.extend_from_slice(b"\r\n$16\r\n");
    for number in [now, 600_000] {
        changed.extend_from_slice(&(number as f64).to_le_bytes());
    }
    changed.extend_from_slice(b"\r\n");
    changed.extend_from_slice(&calls[found + NONE.len()..]);
    changed
}

/// Returns the instant of this machine.
fn here() -> u64 {
    jiff::Timestamp::now().as_microsecond() as u64
}

const DAY: u64 = 86_400_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_local_clock_is_corrected_and_charges_once() {
    let elsewhere = ClockProxy::start().await;
    let calendars = [
        Calendar::new(Dates::Days, "Europe/Berlin"),
        Calendar::new(Dates::Weeks(6), "America/New_York"),
        Calendar::new(Dates::Months(31), "Pacific/Apia"),
        Calendar::new(Dates::Years, "UTC"),
    ];
    for (index, now) in
        [at("2011-12-30T09:59:59Z"), at("1999-03-01T00:00:00Z"), at("2099-10-25T00:30:00Z")].into_iter().enumerate()
    {
        elsewhere.now.store(now, Ordering::Relaxed);
        for calendar in &calendars {
            let limiter = elsewhere.limiter([Limit::new("quota", calendar.of(5))]).await;
            let key = format!("{index} {calendar:?}");
            let (calls, decision) = elsewhere.calls(limiter.acquire(&key, 2)).await;
            let decision = decision.unwrap();
            assert_eq!((calls, decision.at().as_micros()), (2, now), "{key}");
            assert_eq!(remaining(&decision), 3, "{key}");
            assert_eq!((now + reset_after(&decision)) as i64, calendar.window(now).1, "{key}");

            // The window has begun, so no calendar is needed.
            let (calls, decision) = elsewhere.calls(limiter.acquire(&key, 3)).await;
            assert_eq!((calls, remaining(&decision.unwrap())), (1, 0), "{key}");
            let (calls, denied) = elsewhere.calls(limiter.acquire(&key, 1)).await;
            let denied = denied.unwrap();
            assert_eq!(calls, 1, "{key}");
            let wait = denied.retry_after().unwrap().as_micros() as i64;
            assert_eq!(denied.at().as_micros() as i64 + wait, calendar.window(now).1, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_needs_no_second_round_trip() {
    let elsewhere = ClockProxy::start().await;
    elsewhere.now.store(at("2011-12-30T09:59:59Z"), Ordering::Relaxed);
    let limiter = elsewhere.limiter([Limit::new("quota", CalendarWindow::daily(5).in_zone("Pacific/Apia"))]).await;
    let first = limiter.acquire("key", 2).await.unwrap().into_receipt();
    let second = limiter.acquire("key", 2).await.unwrap().into_receipt();
    let (calls, refunded) = elsewhere.calls(limiter.refund(first)).await;
    refunded.unwrap();
    assert_eq!((calls, limiter.left("key").await), (1, vec![3]));
    // The window has ended, and the next one was not sent.
    elsewhere.now.store(at("2011-12-30T10:00:00Z"), Ordering::Relaxed);
    let (calls, refunded) = elsewhere.calls(limiter.refund(second)).await;
    refunded.unwrap();
    assert_eq!((calls, limiter.left("key").await), (1, vec![5]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_off_by_one_window_needs_no_second_round_trip() {
    let elsewhere = ClockProxy::start().await;
    // From one day back to two days ahead, with days of at least 22 hours.
    for (off, calls) in [(0, 1), (-22, 1), (22, 1), (44, 1), (-52, 2), (76, 2)] {
        let now = (here() as i64 + off * 3_600_000_000) as u64;
        elsewhere.now.store(now, Ordering::Relaxed);
        for (calendar, calls) in [
            (Calendar::new(Dates::Days, "Europe/Berlin"), calls),
            (Calendar::new(Dates::Months(15), "Europe/Berlin"), 1),
        ] {
            let limiter = elsewhere.limiter([Limit::new("quota", calendar.of(5))]).await;
            let key = format!("{off} {calendar:?}");
            let (took, decision) = elsewhere.calls(limiter.acquire(&key, 1)).await;
            let decision = decision.unwrap();
            assert_eq!((took, remaining(&decision)), (calls, 4), "{key}");
            assert_eq!((now + reset_after(&decision)) as i64, calendar.window(now).1, "{key}");
        }
    }
}

/// Both attempts are all or nothing: the limit without a calendar is not charged by the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_limits_of_a_repeated_call_are_charged_once() {
    let elsewhere = ClockProxy::start().await;
    elsewhere.now.store(at("2031-01-01T00:00:00Z"), Ordering::Relaxed);
    let limits = [
        Limit::new("before", FixedWindow::per_day(10)),
        Limit::new("quota", CalendarWindow::weekly(10, Weekday::Monday).in_zone("Europe/Berlin")),
        Limit::new("after", FixedWindow::per_day(10)),
    ];
    let limiter = elsewhere.limiter(limits).await;
    let (calls, decision) = elsewhere.calls(limiter.acquire("key", 3)).await;
    assert_eq!((calls, decision.unwrap().remaining()), (2, vec![7, 7, 7]));
}

/// If the clock is never in a window that was sent, the result is an error, and nothing is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_runs_away_is_an_error() {
    let elsewhere = ClockProxy::start().await;
    elsewhere.now.store(at("2031-01-01T00:00:00Z"), Ordering::Relaxed);
    let limiter = elsewhere.limiter([Limit::new("quota", CalendarWindow::daily(5))]).await;
    elsewhere.pace.store(10 * DAY, Ordering::Relaxed);
    let (calls, decision) = elsewhere.calls(limiter.acquire("key", 1)).await;
    let error = format!("{:?}", decision.unwrap_err());
    assert!(error.contains("OUTSIDE"), "{error}");
    assert_eq!(calls, 3, "it is tried again, but not for ever");
    assert_eq!(elsewhere.server.keys("*"), [""; 0]);
}
