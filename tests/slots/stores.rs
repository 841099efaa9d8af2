//! Slots of a limiter, in memory and in databases.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::database::{Database, Fault};
use support::memcached_server::MemcachedServer;
use support::patient::Patient;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{
    AcquireError, Concurrency, FixedWindow, Limit, Limiter, MemoryStore, SlotGuard, Store, SystemClock,
};

use self::store::Memcached;

#[path = "../../examples/memcached_store/store.rs"]
mod store;

/// The shortest time to live.
const SECOND: Duration = Duration::from_secs(1);

/// The latest time after which the slots of a process that has died are free, with a little more for the machine.
const ALL_FREE: Duration = Duration::from_millis(1_125 + 500);

/// Stores of all kinds, with their servers.
async fn stores() -> Vec<(&'static str, Arc<dyn Store>, Box<dyn Any>)> {
    let server = RedisServer::start();
    let redis = connect(&server).await;
    let memcached_server = MemcachedServer::start();
    let memcached = Memcached::connect(&memcached_server.address()).await.expect("a connection");
    let database = CasStore::new(Database::new(SystemClock::new(), Fault::None));
    vec![
        ("memory", Arc::new(MemoryStore::new()), Box::new(())),
        ("compare and swap", Arc::new(database), Box::new(())),
        ("Memcached", Arc::new(CasStore::new(memcached)), Box::new(memcached_server)),
        ("Redis", Arc::new(redis), Box::new(server)),
    ]
}

fn limiter(store: &Arc<dyn Store>, slots: u32) -> Limiter {
    let streams = Limit::new("streams", Concurrency::limit(slots).time_to_live(SECOND));
    Limiter::builder([streams]).patient().store(store.clone()).build()
}

/// Waits until a slot is free.
async fn hold(limiter: &Limiter) -> SlotGuard {
    limiter.hold_at_most("ann", 1, Duration::from_secs(20)).await.expect("a slot")
}

async fn is_full(limiter: &Limiter) -> bool {
    limiter.hold("ann", 1).await.is_err()
}

#[tokio::test]
async fn a_slot_is_held_until_it_is_dropped() {
    for (name, store, _server) in stores().await {
        let limiter = limiter(&store, 2);
        let first = limiter.hold("ann", 1).await.expect("a slot");
        let second = limiter.hold("ann", 1).await.expect("a slot");
        assert!(is_full(&limiter).await, "{name}");
        assert!(limiter.hold("bob", 1).await.is_ok(), "{name}");
        drop(first);
        let third = hold(&limiter).await;
        assert!(is_full(&limiter).await, "{name}");
        drop((second, third));
        let held = [hold(&limiter).await, hold(&limiter).await];
        assert!(is_full(&limiter).await, "{name}: {held:?}");
    }
}

/// All are renewed in one call.
#[tokio::test]
async fn a_key_that_holds_something_else_takes_no_slot_of_another_key() {
    let server = RedisServer::start();
    let store: Arc<dyn Store> = Arc::new(connect(&server).await);
    let limiter = limiter(&store, 1);
    let mut held = vec![limiter.hold(2, 1).await.expect("a slot")];
    let [spoiled] = &server.keys("*")[..] else { panic!("one key") };
    for key in [0, 1, 3, 4] {
        held.push(limiter.hold(key, 1).await.expect("a slot"));
    }
    server.ask::<()>(cmd("SET").arg(spoiled).arg("something else").arg("EX").arg(60));
    let began = Instant::now();
    while began.elapsed() < 3 * SECOND {
        for key in [0, 1, 3, 4] {
            let error = limiter.hold(key, 1).await.expect_err("no slot is free");
            assert!(error.is_denied(), "{key} after {:?}: {error}", began.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_slot_outlives_its_time_to_live_while_it_is_held() {
    for (name, store, _server) in stores().await {
        let limiter = limiter(&store, 1);
        let held = limiter.hold("ann", 1).await.expect("a slot");
        let began = Instant::now();
        while began.elapsed() < 3 * SECOND {
            assert!(is_full(&limiter).await, "{name} after {:?}", began.elapsed());
            sleep(Duration::from_millis(50)).await;
        }
        drop(held);
        let freed = Instant::now();
        drop(hold(&limiter).await);
        assert!(freed.elapsed() < SECOND / 2, "{name}: {:?}", freed.elapsed());
    }
}

#[tokio::test]
async fn the_slots_of_a_process_that_has_died_are_free_again() {
    for (name, store, _server) in stores().await.into_iter().skip(1) {
        let limiter = limiter(&store, 3);
        let dying = limiter.clone();
        // With its runtime, a process loses the task that renews its slots.
        let died = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let held = runtime.block_on(async {
                let held = [hold(&dying).await, hold(&dying).await, hold(&dying).await];
                sleep(2 * SECOND).await;
                held
            });
            drop(runtime);
            std::mem::forget(held);
        });
        died.await.expect("no panic");
        assert!(is_full(&limiter).await, "{name}");
        let died = Instant::now();
        let held = [hold(&limiter).await, hold(&limiter).await, hold(&limiter).await];
        assert!(died.elapsed() < ALL_FREE + SECOND, "{name}: {:?} {held:?}", died.elapsed());
    }
}

/// Denied by concurrency, but charged by the rate: limit 1 and 1 blocks the next request.
#[tokio::test]
async fn a_denied_operation_takes_neither_a_slot_nor_a_token() {
    for (name, store, _server) in stores().await {
        let limits = [Limit::concurrent("streams", 1), Limit::new("daily", FixedWindow::per_day(2))];
        let limiter = Limiter::builder(limits).patient().store(store).build();
        let held = limiter.hold("ann", 1).await.expect("a slot");
        for _ in 0..3 {
            assert!(is_full(&limiter).await, "{name}");
        }
        drop(held);
        let held = hold(&limiter).await;
        assert_eq!(held.outcomes()[1].remaining(), 0, "{name}");
        drop(held);
        // The slot is free, but there is no token: nobody is told to try again in a second.
        let error = limiter.hold_at_most("ann", 1, SECOND).await.expect_err("no token");
        let AcquireError::Denied { retry_after, .. } = error else { panic!("{name}: {error}") };
        assert!(retry_after.is_none_or(|wait| wait > SECOND), "{name}: {retry_after:?}");
        let state = limiter.peek("ann", 0).await.expect("an answer");
        assert_eq!(state.outcomes()[0].remaining(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_keeps_no_slot() {
    let database = Database::new(SystemClock::new(), Fault::None).latency(Duration::from_millis(30));
    let store: Arc<dyn Store> = Arc::new(CasStore::new(database));
    let limiter = limiter(&store, 1);
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(10), limiter.hold("ann", 1)).await.is_err(), "it was slow");
        let began = Instant::now();
        drop(hold(&limiter).await);
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn waiters_are_served_in_order_and_woken_by_a_release() {
    for (name, store, _server) in stores().await {
        let limiter = limiter(&store, 1);
        let held = hold(&limiter).await;
        let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
        for waiter in 0..10 {
            let (limiter, sender) = (limiter.clone(), sender.clone());
            tokio::spawn(async move {
                let held = hold(&limiter).await;
                sender.send(waiter).expect("a receiver");
                drop(held);
            });
            sleep(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        drop(held);
        for expected in 0..10 {
            assert_eq!(served.recv().await, Some(expected), "{name}");
        }
        assert!(began.elapsed() < 3 * SECOND, "{name}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_waiter_gives_up_at_its_deadline() {
    for (name, store, _server) in stores().await {
        let limiter = limiter(&store, 1);
        let _held = hold(&limiter).await;
        let began = Instant::now();
        let error = limiter.hold_at_most("ann", 1, Duration::from_millis(300)).await.expect_err("no slot");
        assert!(error.is_denied(), "{name}");
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(290) && waited < 2 * SECOND, "{name}: {waited:?}");
    }
}
