//! Slots while Redis is stopped, loses its state, restarts, or fails over, and while limits change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::cmd;
#[cfg(target_os = "linux")]
use support::moved_clock::MovedClock;
use support::patient::{Patient, connected};
use support::redis_cluster::RedisCluster;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::{
    Concurrency, Event, Limit, Limiter, LiveLimits, OnStoreError, RedisConfig, RedisStore, Share, SlotGuard,
};

const SLOTS: u32 = 4;

/// Longer than the shortest one, so that a loaded machine does not exceed the bounds.
const TIME_TO_LIVE: Duration = Duration::from_secs(2);

/// For a loaded machine, beside the bounds.
const SLACK: Duration = Duration::from_millis(500);

/// The latest time after which slots that nobody renews are free.
const ALL_FREE: Duration = TIME_TO_LIVE.checked_mul(9).unwrap().checked_div(8).unwrap();

fn streams() -> Limit {
    Limit::new("streams", Concurrency::limit(SLOTS).time_to_live(TIME_TO_LIVE))
}

/// A process that holds all slots.
struct Holder {
    held: Vec<Arc<SlotGuard>>,
    /// The number of slots that were reported as expired.
    reported: Arc<AtomicU64>,
    /// When each of them was first known to be expired.
    expired: Vec<JoinHandle<Instant>>,
}

impl Holder {
    async fn new(store: RedisStore) -> Self {
        let reported: Arc<AtomicU64> = Arc::default();
        let events = reported.clone();
        let observe = move |event: &Event<'_>| {
            if let Event::SlotsExpired { slots, .. } = event {
                events.fetch_add(*slots, Ordering::Relaxed);
            }
        };
        let limiter = Limiter::builder([streams()]).patient().store(store).observe(observe).build();
        let mut held = Vec::new();
        for _ in 0..SLOTS {
            held.push(Arc::new(limiter.hold("key", 1).await.expect("a slot")));
        }
        let expired = |held: &Arc<SlotGuard>| {
            let held = held.clone();
            tokio::spawn(async move {
                held.expired().await;
                Instant::now()
            })
        };
        let expired = held.iter().map(expired).collect();
        Self { held, reported, expired }
    }

    fn reported(&self) -> u64 {
        self.reported.load(Ordering::Relaxed)
    }

    fn have_expired(&self) -> bool {
        self.expired.iter().any(JoinHandle::is_finished)
    }

    /// Releases all slots.
    fn release(&mut self) {
        self.expired.drain(..).for_each(|task| task.abort());
        self.held.clear();
    }
}

/// A process that takes each slot that is free, and keeps it.
struct Taker {
    limiter: Limiter,
    held: Vec<SlotGuard>,
    last: Option<Instant>,
}

impl Taker {
    fn new(store: RedisStore) -> Self {
        Self { limiter: Limiter::builder([streams()]).patient().store(store).build(), held: Vec::new(), last: None }
    }

    /// Takes slots for a time. Returns their number.
    async fn take_for(&mut self, span: Duration) -> usize {
        let (began, before) = (Instant::now(), self.held.len());
        while began.elapsed() < span {
            match timeout(span.saturating_sub(began.elapsed()), self.limiter.hold("key", 1)).await {
                Ok(Ok(held)) => {
                    self.held.push(held);
                    self.last = Some(Instant::now());
                }
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
        self.held.len() - before
    }

    async fn takes_all_within(&mut self, span: Duration) {
        let began = Instant::now();
        while self.held.len() < SLOTS as usize {
            self.take_for(Duration::from_millis(20)).await;
            assert!(began.elapsed() < span + SLACK, "{} slots after {:?}", self.held.len(), began.elapsed());
        }
        assert_eq!(self.take_for(TIME_TO_LIVE / 4).await, 0);
    }
}

#[tokio::test]
async fn a_pause_of_redis_for_less_than_three_eighths_changes_nothing() {
    let server = RedisServer::start();
    let mut holder = Holder::new(connect(&server).await).await;
    let mut taker = Taker::new(connect(&server).await);
    for phase in 0..4 {
        sleep(TIME_TO_LIVE / 16 * phase).await;
        server.pause();
        assert_eq!(taker.take_for(TIME_TO_LIVE / 4).await, 0);
        server.resume();
        assert_eq!(taker.take_for(TIME_TO_LIVE).await, 0);
    }
    assert_eq!((holder.reported(), holder.have_expired()), (0, false));
    holder.release();
    taker.takes_all_within(ALL_FREE).await;
}

#[tokio::test]
async fn after_a_longer_pause_of_redis_nobody_is_admitted_until_the_limit_holds_again() {
    let server = RedisServer::start();
    let mut holder = Holder::new(connect(&server).await).await;
    let mut taker = Taker::new(connect(&server).await);
    let began = Instant::now();
    server.pause();
    taker.take_for(TIME_TO_LIVE * 3 / 2).await;
    assert!(holder.expired.iter().all(JoinHandle::is_finished));
    let resumed = Instant::now();
    server.resume();
    taker.take_for(TIME_TO_LIVE).await;
    assert!(taker.held.len() <= SLOTS as usize, "{}", taker.held.len());
    assert!(taker.last.is_none_or(|last| last - resumed < TIME_TO_LIVE / 8 + SLACK), "{:?}", taker.last);
    assert_eq!(holder.reported(), u64::from(SLOTS));
    for expired in holder.expired.drain(..) {
        let after = expired.await.expect("an instant") - began;
        // They were renewed up to three eighths before the pause.
        assert!(after > TIME_TO_LIVE * 4 / 8 - SLACK / 5 && after < TIME_TO_LIVE * 7 / 8 + SLACK, "{after:?}");
    }
    // The others hold all slots.
    taker.held.clear();
    assert_eq!(taker.take_for(TIME_TO_LIVE * 3 / 2).await, 0);
    holder.release();
    taker.takes_all_within(ALL_FREE).await;
}

#[tokio::test]
async fn slots_are_charged_again_after_redis_has_lost_them() {
    let mut server = RedisServer::start();
    let mut holder = Holder::new(connect(&server).await).await;
    for restarts in [false, true] {
        let mut taker = Taker::new(connect(&server).await);
        assert_eq!(taker.take_for(TIME_TO_LIVE / 2).await, 0);
        let lost = Instant::now();
        match restarts {
            false => server.ask::<()>(&cmd("FLUSHALL")),
            true => server.restart(),
        }
        taker.take_for(TIME_TO_LIVE).await;
        assert!(taker.held.len() <= SLOTS as usize, "{}", taker.held.len());
        // A quarter of the time to live, and a bucket.
        assert!(taker.last.is_none_or(|last| last - lost < TIME_TO_LIVE * 3 / 8 + SLACK), "{:?}", taker.last);
        // The holder has charged its slots again.
        taker.held.clear();
        assert_eq!(taker.take_for(TIME_TO_LIVE / 4).await, 0, "{restarts}");
        drop(taker);
    }
    assert_eq!((holder.reported(), holder.have_expired()), (0, false), "it can't know");
    holder.release();
    Taker::new(connect(&server).await).takes_all_within(ALL_FREE).await;
}

/// A machine that was suspended steps its wall clock, by which Redis decides, but not that of processes.
#[cfg(target_os = "linux")]
#[test]
fn a_step_of_the_clock_of_redis_is_as_a_loss_of_its_state() {
    MovedClock::run("faults::a_step_of_the_clock_of_redis_is_as_a_loss_of_its_state", async |clock| {
        let server = RedisServer::start();
        let mut holder = Holder::new(connect(&server).await).await;
        let mut taker = Taker::new(connect(&server).await);
        assert_eq!(taker.take_for(TIME_TO_LIVE / 2).await, 0);
        clock.step_forward(Duration::from_secs(600));
        let stepped = Instant::now();
        taker.take_for(TIME_TO_LIVE).await;
        assert!(!taker.held.is_empty() && taker.held.len() <= SLOTS as usize, "{}", taker.held.len());
        // A quarter of the time to live, and a bucket.
        assert!(taker.last.is_some_and(|last| last - stepped < TIME_TO_LIVE * 3 / 8 + SLACK), "{:?}", taker.last);
        assert_eq!((holder.reported(), holder.have_expired()), (0, false), "it can't know");
        // The holder has charged its slots again.
        taker.held.clear();
        assert_eq!(taker.take_for(TIME_TO_LIVE / 4).await, 0);
        holder.release();
        taker.takes_all_within(ALL_FREE).await;
    });
}

/// They hold all slots before and after it, unless they could not renew them in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_survive_a_failover_of_a_cluster() {
    let mut cluster = RedisCluster::start(1);
    let connect = async || connected(RedisConfig::cluster(cluster.urls()).patient()).await;
    let (first, second) = (connect().await, connect().await);
    let mut holder = Holder::new(first).await;
    let mut taker = Taker::new(second);
    assert_eq!(taker.take_for(TIME_TO_LIVE / 2).await, 0);
    let (master, _) = cluster.keys().pop().expect("a key");
    cluster.kill(master);
    cluster.notice(master);
    // A replica is promoted after two to three seconds.
    taker.take_for(Duration::from_secs(5)).await;
    assert!(taker.held.len() as u64 <= holder.reported(), "{} of {}", taker.held.len(), holder.reported());
    taker.held.clear();
    assert_eq!(taker.take_for(TIME_TO_LIVE * 3 / 2).await, 0);
    holder.release();
    taker.takes_all_within(ALL_FREE).await;
}

#[tokio::test]
async fn a_share_in_memory_holds_its_slots_for_as_long_as_they_are_in_use() {
    let mut server = RedisServer::start();
    let store = RedisConfig::node(server.url()).connect().await.expect("a connection");
    let policy = OnStoreError::DecideLocally(Share::one_of(2));
    let limiter = Limiter::builder([streams()]).store(store).on_store_error(policy).build();
    let hold = async || limiter.hold("key", 1).await;
    let before = hold().await.expect("a slot");
    server.stop();
    let mut local = Vec::new();
    while local.len() < 2 {
        local.push(hold().await.expect("a slot of the share"));
    }
    let began = Instant::now();
    while began.elapsed() < TIME_TO_LIVE * 5 / 4 {
        assert!(hold().await.is_err(), "after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(timeout(Duration::ZERO, local[0].expired()).await.is_err(), "slots in memory do not expire");
    timeout(Duration::ZERO, before.expired()).await.expect("it has expired in Redis");
    local.pop();
    local.push(hold().await.expect("the slot of the share is free again"));
    assert!(hold().await.is_err());

    server.start_again();
    let began = Instant::now();
    let mut held = Vec::new();
    // The one from before is charged again within a sixteenth, once the breaker has closed.
    while began.elapsed() < TIME_TO_LIVE * 3 / 2 {
        held.extend(hold().await);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(held.len() >= 3 && held.len() <= 4, "{}", held.len());
    // Slots of the share are not those of Redis.
    local.clear();
    assert!(hold().await.is_err());
}

#[tokio::test]
async fn slots_are_held_while_limits_are_replaced() {
    let server = RedisServer::start();
    let of = |slots| Limit::new("streams", Concurrency::limit(slots).time_to_live(TIME_TO_LIVE));
    let limits = LiveLimits::new([of(2)]);
    let limiter = Limiter::live_builder(&limits).patient().store(connect(&server).await).build();
    let hold = async || limiter.hold("key", 1).await;
    let mut held = vec![hold().await.expect("a slot"), hold().await.expect("a slot")];
    assert!(hold().await.is_err());

    limits.replace([of(3)]).expect("valid limits");
    held.push(hold().await.expect("one more"));
    let is_full_for = async |span: Duration| {
        let began = Instant::now();
        while began.elapsed() < span {
            assert!(hold().await.is_err(), "after {:?}", began.elapsed());
            sleep(Duration::from_millis(20)).await;
        }
    };
    is_full_for(TIME_TO_LIVE * 5 / 4).await;

    limits.replace([of(1)]).expect("valid limits");
    is_full_for(TIME_TO_LIVE / 4).await;
    held.truncate(1);
    is_full_for(TIME_TO_LIVE / 4).await;

    limits.replace([]).expect("valid limits");
    drop(hold().await.expect("no limit"));
    sleep(TIME_TO_LIVE).await;
    limits.replace([of(2)]).expect("valid limits");
    // It was renewed without the limit.
    let second = limiter.hold_at_most("key", 1, ALL_FREE).await.expect("a slot");
    is_full_for(TIME_TO_LIVE / 4).await;
    // Released while the limit is another one than the one that took it.
    held.clear();
    let third = limiter.hold_at_most("key", 1, TIME_TO_LIVE / 2 + SLACK).await.expect("a slot");
    is_full_for(TIME_TO_LIVE / 4).await;
    drop((second, third));
}

#[tokio::test]
async fn a_key_with_an_override_has_as_many_slots() {
    let server = RedisServer::start();
    let limit = streams().overridable();
    let limiter = Limiter::builder([limit]).patient().store(connect(&server).await).build();
    let handle = limiter.limit("streams").expect("the limit");
    let size = |slots| Concurrency::limit(slots).time_to_live(TIME_TO_LIVE);
    let hold = async || limiter.hold("key", 1).await;
    handle.set_override("key", size(6), None).await.expect("an override");
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(hold().await.expect("a slot"));
    }
    let began = Instant::now();
    while began.elapsed() < TIME_TO_LIVE * 5 / 4 {
        assert!(hold().await.is_err(), "after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    handle.remove_override("key").await.expect("it is removed");
    held.truncate(4);
    sleep(SLACK).await;
    assert!(hold().await.is_err());
    held.pop();
    held.push(limiter.hold_at_most("key", 1, TIME_TO_LIVE / 4 + SLACK).await.expect("a slot"));
    handle.set_override("key", size(1), None).await.expect("an override");
    held.truncate(1);
    sleep(SLACK).await;
    assert!(hold().await.is_err());
    held.clear();
    drop(limiter.hold_at_most("key", 1, TIME_TO_LIVE / 4 + SLACK).await.expect("a slot"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_does_not_outlast_the_slots_of_a_short_outage() {
    const SPAN: Duration = Duration::from_secs(4);
    const HOLDERS: u64 = 16;
    let server = RedisServer::start();
    let limit = || Limit::new("streams", Concurrency::limit(1).time_to_live(SPAN));
    let taker = Limiter::builder([limit()]).patient().store(connect(&server).await).build();
    let (mut held, mut traffic) = (Vec::new(), tokio::task::JoinSet::new());
    let mut holders = Vec::new();
    for _ in 0..HOLDERS {
        let store = RedisConfig::node(server.url()).connect().await.unwrap();
        holders.push(Limiter::builder([limit()]).store(store).build());
    }
    // Starts the task that renews.
    for (number, holder) in holders.iter().enumerate() {
        held.push(holder.hold(1_000 + number as u64, 1).await.unwrap());
    }
    let began = Instant::now();
    sleep(SPAN * 9 / 64).await;
    for (number, holder) in holders.iter().enumerate() {
        held.push(holder.hold(number as u64, 1).await.unwrap());
        let holder = holder.clone();
        traffic.spawn(async move {
            loop {
                let _ = holder.peek("other", 1).await;
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    sleep((SPAN / 2 - Duration::from_millis(40)).saturating_sub(began.elapsed())).await;
    server.pause();
    sleep(SPAN * 3 / 8 - Duration::from_millis(60)).await;
    server.resume();
    let (resumed, mut twice) = (Instant::now(), Vec::new());
    while resumed.elapsed() < SPAN / 2 {
        for number in 0..HOLDERS {
            if let Ok(one) = taker.hold(number, 1).await {
                twice.push((number, resumed.elapsed()));
                held.push(one);
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(twice, [], "slots were given twice after an outage of less than three eighths");
}
