//! Requests for one key of a database with compare-and-swap that are in each other's way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use support::calls::Calls;
use support::database::{Database, Fault};
use support::time::SECOND;
use tokio::time::Instant;
use tower_ratelimit::store::{Answer, CasStore, Charges, KeyHasher, Override, OverrideOperation, Purpose, StoreFuture};
use tower_ratelimit::{Builder, CircuitBreaker, FixedWindow, Limit, Limiter, Store, StoreErrorKind, TokenBucket};

use crate::limited::ms;

/// Returns a database in which other processes precede this many writes.
fn conflicting(conflicts: u64) -> Database {
    let database = Database::default();
    database.conflicts.store(conflicts, Ordering::Relaxed);
    database
}

fn limiter(database: &Database) -> Builder {
    let limit = Limit::new("many", FixedWindow::new(1_000, 10 * SECOND));
    Limiter::builder(limit.overridable()).store(CasStore::new(database.clone()))
}

/// Returns the pauses between writes.
fn pauses(database: &Database) -> Vec<Duration> {
    database.writes().windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Returns whether a request is allowed, or else the kind of error.
async fn acquire(limiter: &Limiter) -> String {
    match limiter.acquire("key", 1).await {
        Ok(decision) => if decision.is_allowed() { "allowed" } else { "denied" }.to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_lost_races_are_tried_again_at_once() {
    let database = conflicting(4);
    assert_eq!(acquire(&limiter(&database).build()).await, "allowed");
    assert_eq!(pauses(&database), [Duration::ZERO; 4]);
}

#[tokio::test(start_paused = true)]
async fn later_attempts_follow_after_random_pauses_of_a_few_milliseconds() {
    let database = conflicting(100);
    assert_eq!(acquire(&limiter(&database).deadline(10 * SECOND).build()).await, "allowed");
    let pauses = pauses(&database);
    // Tokio's timers have a resolution of a millisecond.
    assert!(pauses.iter().all(|pause| *pause <= ms(6)), "{pauses:?}");
    for pause in [ms(1), ms(2), ms(3), ms(4)] {
        assert!(pauses.contains(&pause), "no {pause:?} in {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_reads_the_time_again() {
    let database = conflicting(1).on_conflict(|clock| clock.advance(2 * SECOND));
    database.clock.advance(Duration::from_secs(9));
    let decision = limiter(&database).build().acquire("key", 1).await.unwrap();
    assert_eq!(decision.outcomes()[0].reset_after(), Duration::from_secs(9), "the window that began meanwhile");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_at_a_later_time_charges_every_limit_once() {
    let database = Database::default().on_conflict(|clock| clock.advance(ms(1)));
    let limits = [Limit::new("one", TokenBucket::per_day(9)), Limit::new("other", TokenBucket::per_day(9))];
    let limiter = Limiter::builder(limits).store(CasStore::new(database.clone())).build();
    for conflicts in 1..=3 {
        assert_eq!(acquire(&limiter).await, "allowed");
        // The second request loses a race for its first key, and the third also for its second one.
        database.conflicts.store(conflicts, Ordering::Relaxed);
    }
    database.conflicts.store(0, Ordering::Relaxed);
    assert_eq!(limiter.left("key").await, [6, 6]);
}

#[tokio::test(start_paused = true)]
async fn retries_end_before_the_deadline() {
    for latency in [0, 1, 3] {
        for deadline in [20, 50, 500].map(ms) {
            let database = conflicting(u64::MAX).latency(ms(latency));
            let (limiter, began) = (limiter(&database).deadline(deadline).build(), Instant::now());
            assert_eq!(acquire(&limiter).await, "Contention", "{deadline:?}");
            assert!(began.elapsed() < deadline, "after {:?} of {deadline:?}", began.elapsed());
        }
    }
}

/// A store that decides after something else, possibly in a task of its own.
#[derive(Debug)]
struct Later {
    inner: Arc<CasStore<Database>>,
    pause: Duration,
    in_task: bool,
}

impl Store for Later {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let (inner, mut charges, pause) = (self.inner.clone(), charges.clone(), self.pause);
        let deciding = async move {
            tokio::time::sleep(pause).await;
            let at = inner.decide(&mut charges, purpose, longest_wait).await?.finish(&mut charges);
            Ok(Answer::with_charges(at, charges))
        };
        if !self.in_task {
            return StoreFuture::pending(deciding);
        }
        let task = tokio::spawn(deciding);
        StoreFuture::pending(async move { task.await.unwrap() })
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.reset(charges)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (inner, charges) = (self.inner.clone(), charges.clone());
        StoreFuture::pending(async move {
            tokio::task::yield_now().await;
            inner.access_override(&charges, operation).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrapped_store_that_is_called_later_retries_for_half_of_the_deadline() {
    for (pause, in_task) in [(0, false), (0, true), (5, false), (5, true)] {
        for deadline in [50, 500].map(ms) {
            let inner = Arc::new(CasStore::new(conflicting(u64::MAX)));
            let store = Later { inner, pause: ms(pause), in_task };
            let limit = Limit::new("many", FixedWindow::new(1_000, 10 * SECOND));
            let limiter = Limiter::builder([limit.overridable()]).store(store).deadline(deadline).build();
            let began = Instant::now();
            assert_eq!(acquire(&limiter).await, "Contention", "{pause} ms, {in_task}, {deadline:?}");
            assert!(began.elapsed() <= ms(pause + 5) + deadline / 2, "after {:?} of {deadline:?}", began.elapsed());
            let size = FixedWindow::new(5, 10 * SECOND);
            let error = limiter.limit("many").unwrap().set_override("key", size, None).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Contention);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn overrides_and_refunds_that_lose_every_race_end() {
    let database = Database::default();
    let limiter = limiter(&database).circuit_breaker(CircuitBreaker::new().failures(1)).build();
    let receipt = limiter.acquire("key", 1).await.unwrap().into_receipt();
    database.conflicts.store(u64::MAX, Ordering::Relaxed);
    let overrides = limiter.limit("many").unwrap();
    let error = overrides.set_override("key", FixedWindow::new(5, 10 * SECOND), None).await.unwrap_err();
    assert!(error.to_string().contains("too many requests"), "{error}");
    drop(limiter.refund(receipt).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let writes = database.writes().len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(database.writes().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn lost_races_open_no_breaker() {
    let database = conflicting(u64::MAX);
    let limiter = limiter(&database).circuit_breaker(CircuitBreaker::new().failures(1)).build();
    for _ in 0..5 {
        assert_eq!(acquire(&limiter).await, "Contention");
    }
    database.conflicts.store(0, Ordering::Relaxed);
    assert_eq!(acquire(&limiter).await, "allowed");
}

#[tokio::test(start_paused = true)]
async fn after_a_trial_that_loses_every_race_the_next_request_is_the_trial() {
    let database = conflicting(u64::MAX);
    let limiter = limiter(&database).circuit_breaker(CircuitBreaker::new().failures(1)).build();
    database.set(Fault::ReadsHang);
    assert_eq!([acquire(&limiter).await, acquire(&limiter).await], ["TimedOut", "BreakerOpen"]);
    database.set(Fault::None);
    tokio::time::sleep(ms(100)).await;
    for _ in 0..3 {
        assert_eq!(acquire(&limiter).await, "Contention");
    }
    database.conflicts.store(0, Ordering::Relaxed);
    assert_eq!(acquire(&limiter).await, "allowed");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_their_turn_in_the_process_open_no_breaker() {
    let database = Database::default().latency(ms(15));
    let limiter = limiter(&database).circuit_breaker(CircuitBreaker::new().failures(1)).deadline(ms(50)).build();
    let mut results = join_all((0..5).map(|_| acquire(&limiter))).await;
    results.sort();
    assert_eq!(results, ["Contention", "Contention", "Contention", "Contention", "allowed"]);
    assert_eq!(acquire(&limiter).await, "allowed");
}

/// Each request that has its turn waited for another one that timed out.
#[tokio::test(start_paused = true)]
async fn a_hanging_database_opens_the_breaker_although_requests_wait_for_their_turn() {
    let database = Database::default();
    let limiter = limiter(&database).build();
    assert_eq!(acquire(&limiter).await, "allowed");
    database.set(Fault::ReadsHang);
    let requests = (0..1_000).map(async |at| {
        tokio::time::sleep(ms(at)).await;
        acquire(&limiter).await
    });
    let results = join_all(requests).await;
    let opened = results.iter().position(|result| result == "BreakerOpen");
    assert!(opened.is_some_and(|at| at < 500), "after {opened:?} ms");
}
