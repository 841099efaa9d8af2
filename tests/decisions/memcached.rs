//! The example store on Memcached, with a server of its own.

use std::sync::Arc;
use std::time::Duration;

use support::calls::Calls;
use support::memcached_server::MemcachedServer;
use support::patient::Patient;
use tower_ratelimit::store::{CasStore, CompareAndSwap};
use tower_ratelimit::{
    Clock, FixedWindow, Limit, Limiter, ManualClock, OnStoreError, StoreErrorKind, SystemClock, TokenBucket,
    conformance,
};

use self::store::Memcached;

#[path = "../../examples/memcached_store/store.rs"]
mod store;

pub(crate) async fn connect(server: &MemcachedServer) -> Arc<Memcached> {
    Arc::new(Memcached::connect(&server.address()).await.unwrap())
}

/// Memcached's own clock runs while that of a test stands still, so values are kept for ten minutes longer.
pub(crate) fn with_clock(memcached: &Arc<Memcached>, clock: ManualClock) -> CasStore<Memcached> {
    CasStore::from(memcached.clone()).clock(clock).ttl_margin(Duration::from_secs(600))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_conforms() {
    let server = MemcachedServer::start();
    conformance::check_compare_and_swap(connect(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_that_share_memcached_admit_exactly_the_limit() {
    let server = MemcachedServer::start();
    let limits = || [Limit::new("day", FixedWindow::per_day(100)), Limit::new("burst", TokenBucket::per_day(150))];
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store = CasStore::from(connect(&server).await);
        let limiter = Limiter::builder(limits()).store(store).patient().build();
        for _ in 0..16 {
            let limiter = limiter.clone();
            tasks.push(tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..4 {
                    match limiter.acquire("key", 1).await {
                        Ok(decision) => allowed += usize::from(decision.is_allowed()),
                        // Too many concurrent writes: nothing was charged.
                        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Contention, "{error:?}"),
                    }
                }
                allowed
            }));
        }
    }
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    let limiter = Limiter::builder(limits()).store(CasStore::from(connect(&server).await)).patient().build();
    let left = limiter.peek("key", 0).await.unwrap().outcomes()[0].remaining();
    assert_eq!((allowed, left), (100, 0));
}

#[tokio::test]
async fn values_expire_on_the_server() {
    let server = MemcachedServer::start();
    let memcached = connect(&server).await;
    assert!(memcached.compare_and_swap("key", None, b"value\r\n", Duration::from_millis(500)).await.unwrap());
    assert_eq!(memcached.get("key").await.unwrap().unwrap().value, b"value\r\n");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(memcached.get("key").await.unwrap(), None);
}

#[tokio::test]
async fn a_window_of_a_year_is_kept() {
    let server = MemcachedServer::start();
    let clock = ManualClock::new(SystemClock::new().now());
    let store = with_clock(&connect(&server).await, clock);
    let limit = Limit::new("year", TokenBucket::new(2, 1, Duration::from_secs(300 * 86_400)));
    let limiter = Limiter::builder([limit]).store(store).patient().build();
    for allowed in [true, true, false] {
        assert_eq!(limiter.allows("key", 1).await, allowed);
    }
}

/// A client sends 10,000 requests in a second, and each of a hundred others one request each 10 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_one_key_gets_exactly_its_limit_and_disturbs_no_other() {
    let server = MemcachedServer::start();
    for policy in [OnStoreError::Reject, OnStoreError::Allow] {
        let limits = Limit::new("day", FixedWindow::per_day(10));
        let store = CasStore::from(connect(&server).await).prefix(&format!("{policy:?}"));
        // Other tests use the processors, too, so answers may take longer than the default deadline.
        let limiter =
            Limiter::builder([limits]).store(store).deadline(Duration::from_secs(1)).on_store_error(policy).build();
        let mut flood = Vec::new();
        let mut others = Vec::new();
        for tick in 0..1_000_u64 {
            let acquire = |key: String| {
                let limiter = limiter.clone();
                tokio::spawn(
                    async move { limiter.acquire(key.as_str(), 1).await.map(|decision| decision.is_allowed()) },
                )
            };
            flood.extend((0..10).map(|_| acquire("flood".to_owned())));
            others.push(acquire(format!("other {}", tick % 100)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut answers = [0; 3];
        for answer in flood {
            answers[answer.await.unwrap().map_or(2, |allowed| usize::from(!allowed))] += 1;
        }
        let mut disturbed = 0;
        for answer in others {
            disturbed += usize::from(answer.await.unwrap().ok() != Some(true));
        }
        assert_eq!((answers, disturbed), ([10, 9_990, 0], 0), "{policy:?}: allowed, denied, failed; others disturbed");
    }
}
