//! How a process renews its slots, with a store that shows and delays its calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use support::database::{Database, Fault};
use support::patient::Patient;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::store::{Answer, CasStore, Charges, KeyHasher, Purpose, StoreFuture};
use tower_ratelimit::{Concurrency, Event, Limit, Limiter, SlotGuard, Store, StoreError, SystemClock};

/// The shortest time to live.
const SECOND: Duration = Duration::from_secs(1);

/// A database, and what is observed of its renewals. Clones share it.
#[derive(Clone, Debug)]
struct Observed {
    database: Arc<CasStore<Database<SystemClock>>>,
    /// Whether decisions are ready at once, as those of a database in this process.
    is_ready: bool,
    /// Whether renewals fail, although they may have been made.
    fails: Arc<AtomicBool>,
    /// The time that a renewal takes.
    latency: Arc<Mutex<Duration>>,
    /// The renewals that are under way, and the most that were at once.
    under_way: Arc<[AtomicU64; 2]>,
    /// The renewals that have begun: their charges, by their slots.
    renewals: Arc<Mutex<Vec<Vec<u64>>>>,
}

impl Observed {
    fn new() -> Self {
        Self {
            database: Arc::new(CasStore::new(Database::new(SystemClock::new(), Fault::None))),
            is_ready: false,
            fails: Arc::default(),
            latency: Arc::default(),
            under_way: Arc::default(),
            renewals: Arc::default(),
        }
    }

    fn limiter(&self, slots: u32) -> Limiter {
        self.limiter_reporting(slots, |_| {})
    }

    fn limiter_reporting(&self, slots: u32, observe: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Limiter {
        Limiter::builder([streams(slots)]).patient().store(self.clone()).observe(observe).build()
    }

    /// Returns a limiter, and the number of its slots that have expired.
    fn limiter_counting_expired(&self, slots: u32) -> (Limiter, Arc<AtomicU64>) {
        let expired: Arc<AtomicU64> = Arc::default();
        let events = expired.clone();
        let limiter = self.limiter_reporting(slots, move |event| {
            if let Event::SlotsExpired { slots, .. } = event {
                events.fetch_add(*slots, Ordering::Relaxed);
            }
        });
        (limiter, expired)
    }

    fn renewals(&self) -> Vec<Vec<u64>> {
        self.renewals.lock().unwrap().clone()
    }

    async fn wait_for_renewals(&self, count: usize) {
        let began = Instant::now();
        while self.renewals().len() < count {
            assert!(began.elapsed() < 10 * SECOND, "{:?}", self.renewals());
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Store for Observed {
    fn hasher(&self) -> KeyHasher {
        self.database.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let (database, mut charges) = (self.database.clone(), charges.clone());
        let decide = async move {
            let at = database.decide(&mut charges, purpose, longest_wait).await?.finish(&mut charges);
            Ok(Answer::with_charges(at, charges))
        };
        match self.is_ready {
            true => StoreFuture::ready(thread::spawn(|| runtime().block_on(decide)).join().unwrap()),
            false => StoreFuture::pending(decide),
        }
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.database.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.database.reset(charges)
    }

    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        if charges.is_empty() {
            return self.database.renew(charges);
        }
        let (observed, charges) = (self.clone(), charges.clone());
        Some(StoreFuture::pending(async move {
            let slots = charges.iter().map(|charge| charge.cost()).collect();
            observed.renewals.lock().unwrap().push(slots);
            let [under_way, most] = &*observed.under_way;
            most.fetch_max(under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let latency = *observed.latency.lock().unwrap();
            sleep(latency).await;
            under_way.fetch_sub(1, Ordering::Relaxed);
            if observed.fails.load(Ordering::Relaxed) {
                return Err(StoreError::new("a renewal that fails"));
            }
            observed.database.renew(&charges).expect("it renews").await
        }))
    }
}

fn streams(slots: u32) -> Limit {
    Limit::new("streams", Concurrency::limit(slots).time_to_live(SECOND))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn hold(limiter: &Limiter) -> SlotGuard {
    limiter.hold_at_most("ann", 1, 20 * SECOND).await.expect("a slot")
}

async fn is_full(limiter: &Limiter) -> bool {
    limiter.hold("ann", 1).await.is_err()
}

async fn slots_in_use(limiter: &Limiter, slots: u64) -> u64 {
    slots - limiter.peek("ann", 0).await.expect("an answer").outcomes()[0].remaining()
}

#[tokio::test]
async fn a_key_is_renewed_by_its_count_and_not_by_slots() {
    let store = Observed::new();
    let limiter = store.limiter(200);
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(hold(&limiter).await);
    }
    sleep(2 * SECOND).await;
    let renewals = store.renewals();
    let last = renewals.last().expect("a renewal");
    // A slot that was taken as a bucket ended is in one of its own, until it is renewed together with the others.
    assert_eq!(last, &[100], "{renewals:?}");
    assert_eq!(slots_in_use(&limiter, 200).await, 100);
    drop(held);
    for _ in 0..200 {
        if slots_in_use(&limiter, 200).await == 0 {
            return;
        }
        sleep(Duration::from_millis(2)).await;
    }
    panic!("{} slots are in use", slots_in_use(&limiter, 200).await);
}

/// Slots of two buckets are renewed by one call, during which all of them are released.
#[tokio::test]
async fn slots_that_are_released_during_their_renewal_are_free_after_it() {
    let store = Observed::new();
    *store.latency.lock().unwrap() = Duration::from_millis(60);
    let limiter = store.limiter(4);
    let mut held = vec![hold(&limiter).await];
    store.wait_for_renewals(1).await;
    // Too fresh for the renewal that is due next when they are older than an eighth of a second.
    for _ in 0..3 {
        sleep(Duration::from_millis(70)).await;
        held.push(hold(&limiter).await);
    }
    assert!(is_full(&limiter).await);
    while store.renewals().last().is_none_or(|charges| charges.len() < 2) {
        sleep(Duration::from_millis(1)).await;
    }
    drop(held);
    sleep(Duration::from_millis(150)).await;
    assert_eq!(slots_in_use(&limiter, 4).await, 0, "{:?}", store.renewals());
    let held = [hold(&limiter).await, hold(&limiter).await, hold(&limiter).await, hold(&limiter).await];
    assert!(is_full(&limiter).await);
    drop(held);
}

/// It would try again after a second.
#[tokio::test]
async fn a_release_during_a_renewal_wakes_those_who_wait() {
    let store = Observed::new();
    *store.latency.lock().unwrap() = Duration::from_millis(60);
    let limiter = store.limiter(1);
    let held = hold(&limiter).await;
    let waiter = limiter.clone();
    let waiter = tokio::spawn(async move { hold(&waiter).await });
    store.wait_for_renewals(1).await;
    let began = Instant::now();
    drop(held);
    drop(waiter.await.expect("a slot"));
    assert!(began.elapsed() < Duration::from_millis(600), "{:?}", began.elapsed());
}

#[tokio::test]
async fn slots_outlive_their_time_to_live_in_a_store_that_decides_at_once() {
    let store = Observed { is_ready: true, ..Observed::new() };
    let limiter = store.limiter(1);
    let held = hold(&limiter).await;
    let began = Instant::now();
    while began.elapsed() < 2 * SECOND {
        assert!(is_full(&limiter).await, "after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    drop(held);
}

/// As servers with a runtime for each core do, if one of them ends.
#[tokio::test]
async fn another_runtime_renews_slots_if_the_first_one_ends() {
    let store = Observed::new();
    let limiter = store.limiter(3);
    let first = limiter.clone();
    let (held, outside) = thread::spawn(move || runtime().block_on(async { (hold(&first).await, hold(&first).await) }))
        .join()
        .expect("no panic");
    let fresh = hold(&limiter).await;
    let began = Instant::now();
    while began.elapsed() < 2 * SECOND {
        assert!(is_full(&limiter).await, "after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    // Without a runtime, a slot is released on the one that renews it.
    thread::spawn(move || drop(outside)).join().expect("no panic");
    let began = Instant::now();
    let again = hold(&limiter).await;
    assert!(began.elapsed() < SECOND / 2, "{:?}", began.elapsed());
    drop((held, fresh, again));
}

#[tokio::test]
async fn another_runtime_renews_slots_if_the_first_one_ends_during_a_renewal() {
    let store = Observed::new();
    let limiter = store.limiter(2);
    *store.latency.lock().unwrap() = SECOND / 10;
    let (first, renewing) = (limiter.clone(), store.clone());
    let held = thread::spawn(move || {
        runtime().block_on(async {
            let held = hold(&first).await;
            renewing.wait_for_renewals(1).await;
            held
        })
    });
    let held = held.join().expect("no panic");
    *store.latency.lock().unwrap() = Duration::ZERO;
    let fresh = hold(&limiter).await;
    let began = Instant::now();
    while began.elapsed() < 2 * SECOND {
        assert!(is_full(&limiter).await, "after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    drop((held, fresh));
    // The renewal may have charged a slot that nobody holds.
    let _both = (hold(&limiter).await, hold(&limiter).await);
    assert!(is_full(&limiter).await);
}

#[tokio::test]
async fn a_slot_is_released_outside_of_a_runtime() {
    let store = Observed::new();
    // Not by its expiry.
    let limiter = Limiter::builder([Limit::concurrent("streams", 1)]).patient().store(store).build();
    for _ in 0..3 {
        let held = hold(&limiter).await;
        assert!(is_full(&limiter).await);
        thread::spawn(move || drop(held)).join().expect("no panic");
    }
    drop(hold(&limiter).await);
}

/// Slots of a key are alike, so a request may keep the one of another that has ended.
#[tokio::test]
async fn the_request_that_is_left_learns_that_its_slot_has_expired() {
    for releases_first in [true, false] {
        let store = Observed::new();
        let limiter = store.limiter(2);
        store.fails.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let first = hold(&limiter).await;
        sleep(Duration::from_millis(400)).await;
        let second = hold(&limiter).await;
        let (released, kept) = if releases_first { (first, second) } else { (second, first) };
        drop(released);
        timeout(2 * SECOND, kept.expired()).await.expect("it expires");
        assert!(began.elapsed() >= Duration::from_millis(850), "{releases_first}: {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_millis(1_800), "{releases_first}: {:?}", began.elapsed());
    }
}

/// Whoever was told by `expired` that others may have its slot finds the event, too.
#[tokio::test]
async fn slots_that_expire_while_they_are_renewed_are_reported() {
    let store = Observed::new();
    let (limiter, expired) = store.limiter_counting_expired(1);
    store.fails.store(true, Ordering::Relaxed);
    let held = hold(&limiter).await;
    sleep(Duration::from_millis(790)).await;
    *store.latency.lock().unwrap() = Duration::from_millis(110);
    store.fails.store(false, Ordering::Relaxed);
    timeout(SECOND, held.expired()).await.expect("it expires");
    let began = Instant::now();
    while expired.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < 3 * SECOND, "{:?}", store.renewals());
        sleep(Duration::from_millis(10)).await;
    }
    drop(held);
}

/// The work of a request may end because its slot has expired, so that the slot is never charged again.
#[tokio::test]
async fn a_slot_that_has_expired_is_reported_when_it_is_released() {
    let store = Observed::new();
    let (limiter, expired) = store.limiter_counting_expired(2);
    store.fails.store(true, Ordering::Relaxed);
    let (held, short) = (hold(&limiter).await, hold(&limiter).await);
    drop(short);
    timeout(2 * SECOND, held.expired()).await.expect("it expires");
    drop(held);
    assert_eq!(expired.load(Ordering::Relaxed), 1);
}

/// It is charged again, and what a call may have charged expires.
#[tokio::test]
async fn a_renewal_with_an_unknown_end_never_frees_a_slot() {
    let store = Observed::new();
    let expired: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let events = expired.clone();
    let limiter = store.limiter_reporting(3, move |event| {
        if let Event::SlotsExpired { limit, slots, .. } = event {
            *events.lock().unwrap().entry((*limit).to_owned()).or_default() += *slots;
        }
    });
    let held = [hold(&limiter).await, hold(&limiter).await, hold(&limiter).await];
    for _ in 0..3 {
        store.fails.store(true, Ordering::Relaxed);
        store.wait_for_renewals(store.renewals().len() + 2).await;
        store.fails.store(false, Ordering::Relaxed);
        store.wait_for_renewals(store.renewals().len() + 2).await;
        assert!(is_full(&limiter).await);
    }
    assert_eq!(*expired.lock().unwrap(), BTreeMap::new());
    let began = Instant::now();
    drop(held);
    let held = [hold(&limiter).await, hold(&limiter).await, hold(&limiter).await];
    assert!(began.elapsed() < Duration::from_millis(1_125 + 1_000), "{:?}", began.elapsed());
    drop(held);
}

#[tokio::test]
async fn slots_are_renewed_after_the_runtime_of_the_first_one_has_ended() {
    let database = Database::new(SystemClock::new(), Fault::None);
    let process = || Limiter::builder([streams(2)]).patient().store(CasStore::new(database.clone())).build();
    let (limiter, other) = (process(), process());
    let (end, ended) = mpsc::channel::<()>();
    let (ready, first_holds) = mpsc::channel::<()>();
    let of_thread = limiter.clone();
    let first = thread::spawn(move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let held = runtime.block_on(of_thread.hold("ann", 1)).unwrap();
        ready.send(()).unwrap();
        ended.recv().unwrap();
        runtime.block_on(async {
            drop(held);
            sleep(Duration::from_millis(50)).await;
        });
    });
    first_holds.recv().unwrap();
    let held = limiter.hold("ann", 1).await.unwrap();
    end.send(()).unwrap();
    first.join().unwrap();
    let one = other.hold("ann", 1).await.expect("the slot that was returned");
    let began = Instant::now();
    while began.elapsed() < 3 * SECOND {
        assert!(other.hold("ann", 1).await.is_err(), "given twice after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    drop((held, one));
}

#[tokio::test]
async fn slots_are_renewed_while_the_runtime_of_the_first_one_stands_still() {
    let database = Database::new(SystemClock::new(), Fault::None);
    let process = || Limiter::builder([streams(1)]).patient().store(CasStore::new(database.clone())).build();
    let (limiter, other) = (process(), process());
    let of_thread = limiter.clone();
    // As a blocking program does, for each of its calls.
    let runtime = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        drop(runtime.block_on(of_thread.hold("bob", 1)).unwrap());
        runtime
    });
    let runtime = runtime.join().unwrap();
    let held = limiter.hold("ann", 1).await.unwrap();
    let began = Instant::now();
    while began.elapsed() < 3 * SECOND {
        assert!(other.hold("ann", 1).await.is_err(), "given twice after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    drop(held);
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_recorder_that_panics_stops_no_renewals() {
    let server = RedisServer::start();
    let panics = Arc::new(AtomicBool::new(true));
    let now = panics.clone();
    let limiter = Limiter::builder([streams(1)])
        .patient()
        .store(connect(&server).await)
        .observe(move |event: &Event<'_>| {
            if !matches!(event, Event::SlotTaken { .. } | Event::SlotReleased { .. })
                && now.swap(false, Ordering::Relaxed)
            {
                panic!("of a recorder at {event:?}");
            }
        })
        .build();
    let held = limiter.hold("ann", 1).await.unwrap();
    server.pause();
    sleep(Duration::from_millis(500)).await;
    server.resume();
    let began = Instant::now();
    while began.elapsed() < 3 * SECOND {
        assert!(limiter.hold("ann", 1).await.is_err(), "given twice after {:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!panics.load(Ordering::Relaxed));
    drop(held);
}

/// Decisions wait for one of them at most.
#[tokio::test]
async fn the_renewals_of_a_node_wait_for_each_other() {
    let store = Observed::new();
    *store.latency.lock().unwrap() = Duration::from_millis(5);
    let limiter = store.limiter(1);
    let mut held = Vec::new();
    for key in 0..300 {
        held.push(limiter.hold(key, 1).await.expect("a slot"));
    }
    store.wait_for_renewals(10).await;
    let [_, most] = &*store.under_way;
    assert_eq!(most.load(Ordering::Relaxed), 1);
    drop(held);
}
