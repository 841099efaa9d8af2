//! Stores in a database with compare-and-swap.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use support::calls::Calls;
use support::database::{Database, Fault, Step};
use support::explained::{Checked, Choices, Stores, check_limiter};
use support::patient::Patient;
use support::store_fixture::midnight;
use tower_ratelimit::store::{CasStore, CompareAndSwap, Versioned};
use tower_ratelimit::{CircuitBreaker, Clock, FixedWindow, Limit, Limiter, ManualClock, StoreError, conformance};

/// Values outlive their state by the TTL margin.
#[tokio::test]
async fn an_override_that_has_expired_is_not_returned_while_its_value_is_kept() {
    let clock = midnight();
    let mails = Limit::new("mails", FixedWindow::per_day(10)).overridable();
    let limiter = Limiter::builder([mails]).store(Database::store(clock.clone(), Fault::None)).build();
    let overrides = limiter.limit("mails").unwrap();
    overrides.set_override(1_u64, FixedWindow::per_day(50), Some(Duration::from_secs(60))).await.unwrap();
    for (seconds, expected) in [(59, true), (1, false), (1, false)] {
        clock.advance(Duration::from_secs(seconds));
        assert_eq!(overrides.get_override(1_u64).await.unwrap().is_some(), expected, "{:?}", clock.now());
    }
}

/// A database without a clock of its own.
#[derive(Debug)]
struct WithoutClock;

impl CompareAndSwap for WithoutClock {
    async fn get(&self, _: &str) -> Result<Option<Versioned>, StoreError> {
        Ok(None)
    }

    async fn compare_and_swap(&self, _: &str, _: Option<u64>, _: &[u8], _: Duration) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn delete(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[test]
fn the_default_clock_of_a_database_never_goes_back() {
    let latest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    let before = latest.load(Ordering::SeqCst);
                    let now = WithoutClock.now().now_or_never().expect("no wait").unwrap().as_micros();
                    assert!(now >= before, "{now} after {before}");
                    latest.fetch_max(now, Ordering::SeqCst);
                }
            });
        }
    });
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(latest.into_inner() <= wall, "it is the wall clock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_with_compare_and_swap_conforms() {
    conformance::check_all(async |clock| Database::store(clock, Fault::None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_whose_writes_conflict_conforms() {
    conformance::check_all(async |clock| Database::store(clock, Fault::Conflicts)).await;
}

#[tokio::test]
async fn explanations_agree_with_the_decisions_of_a_store_with_compare_and_swap() {
    let mut checked = Checked::default();
    for seed in 0..50 {
        let clock = ManualClock::default();
        let store = || Database::store(clock.clone(), Fault::None);
        let stores = Stores { explained: store(), control: store(), clock: clock.clone() };
        check_limiter(seed, 25, Choices { queues: true }, stores, &mut checked).await;
    }
    assert!(checked.allowed > 50 && checked.denied > 50 && checked.locked_out > 0, "{checked:?}");
}

/// Returns how many charges are lost when two processes share a database.
async fn allowed_by_two_processes(fault: Fault) -> u64 {
    let database = Database::new(ManualClock::default(), fault);
    let limiter = || {
        let store = CasStore::new(database.clone());
        Limiter::builder(Limit::new("hundred", FixedWindow::per_day(100))).store(store).patient().build()
    };
    let process = async || {
        let (limiter, mut allowed) = (limiter(), 0);
        for _ in 0..100 {
            allowed += u64::from(limiter.allows("key", 1).await);
        }
        allowed
    };
    let (one, other) = tokio::join!(process(), process());
    one + other - (100 - limiter().left("key").await[0])
}

#[tokio::test]
async fn processes_that_share_a_database_lose_no_charge() {
    assert_eq!(allowed_by_two_processes(Fault::None).await, 0);
    assert!(allowed_by_two_processes(Fault::IgnoresVersions).await > 0, "the test can fail");
}

/// Each number of polls ends another step of the request: reading, or writing one of the two keys.
#[tokio::test]
async fn a_cancelled_request_leaves_all_its_limits_charged_or_none() {
    let (limiter, _) = two_limits();
    let (mut is_completed, mut key) = (false, 0_u32);
    while !is_completed {
        key += 1;
        let mut acquiring = limiter.acquire(key, 1);
        for _ in 0..key {
            is_completed |= (&mut acquiring).now_or_never().is_some();
            tokio::task::yield_now().await;
            if is_completed {
                break;
            }
        }
        drop(acquiring);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let left = limiter.left(key).await;
        assert_eq!(left[0], left[1], "remaining after {key} polls");
    }
    assert!(key > 4, "the request was cancelled at {key} steps only");
}

#[tokio::test(start_paused = true)]
async fn requests_to_a_hanging_database_do_not_accumulate() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for fault in [Fault::ReadsHang, Fault::WritesHang] {
        let store = Database::store(ManualClock::default(), fault);
        let limiter = Limiter::builder(limits()).store(store).circuit_breaker(CircuitBreaker::off()).build();
        for key in 0..20_u32 {
            assert!(limiter.acquire(key, 1).await.is_err(), "the deadline of request {key} is over");
        }
        tokio::task::yield_now().await;
        // A request that has begun to write is completed if the database answers within 5 s.
        assert_eq!(tasks() > 0, fault == Fault::WritesHang, "{} tasks, {fault:?}", tasks());
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(tasks(), 0, "{fault:?}");
    }
}

fn limits() -> [Limit; 2] {
    ["one", "other"].map(|name| Limit::new(name, FixedWindow::per_day(10)))
}

/// Returns a limiter with two limits of ten per day, and the results of the next reads and writes of its database.
fn two_limits() -> (Limiter, Arc<Mutex<VecDeque<Step>>>) {
    let database = Database::default();
    let steps = database.steps.clone();
    (Limiter::builder(limits()).store(CasStore::new(database)).patient().build(), steps)
}

#[tokio::test]
async fn a_request_that_fails_after_its_first_write_leaves_no_limit_charged() {
    use Step::{Conflict, Fail, Succeed};
    let (limiter, steps) = two_limits();
    // Two reads, the first write, and the second one, after which the key is read again.
    for failing in [vec![Succeed, Succeed, Succeed, Fail], vec![Succeed, Succeed, Succeed, Conflict, Fail]] {
        *steps.lock().unwrap() = failing.into();
        assert!(limiter.acquire("key", 1).await.is_err());
        assert_eq!(limiter.left("key").await, [10, 10]);
    }
}

#[tokio::test]
async fn a_refund_that_fails_under_one_limit_refunds_the_others() {
    let (limiter, steps) = two_limits();
    let receipt = limiter.acquire("key", 1).await.unwrap().into_receipt();
    *steps.lock().unwrap() = [Step::Succeed, Step::Fail].into();
    assert!(limiter.refund(receipt).await.is_err());
    assert_eq!(limiter.left("key").await, [9, 10]);
}

#[tokio::test(start_paused = true)]
async fn a_refund_of_a_cancelled_request_ends_although_the_database_hangs() {
    let (limiter, steps) = two_limits();
    *steps.lock().unwrap() = [Step::Succeed; 4].into_iter().chain([Step::Hang]).collect();
    let mut acquiring = limiter.acquire("key", 1);
    while steps.lock().unwrap().len() > 2 {
        assert!((&mut acquiring).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    drop(acquiring);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((steps.lock().unwrap().len(), tasks()), (0, 1), "the refund hangs");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(tasks(), 0);
}
