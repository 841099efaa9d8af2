//! The conformance suite, with every store, and with stores that have defects.

use std::collections::HashMap;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use support::explained::{Checked, Choices, Stores, check_limiter};
use support::patient::Patient;
use support::redis_server::RedisServer;
use tower_ratelimit::store::{
    CasStore, Charge, CompareAndSwap, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture, Versioned,
};
use tower_ratelimit::{
    CircuitBreaker, Clock, Decision, FixedWindow, Limit, Limiter, ManualClock, MemoryStore, RedisConfig, Store,
    StoreError, Timestamp, conformance,
};

#[tokio::test]
async fn the_memory_store_conforms() {
    conformance::check_all(async |clock| MemoryStore::new().clock(clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_redis_store_conforms() {
    let server = RedisServer::start();
    let url = server.url().to_owned();
    let connect = async |clock| RedisConfig::node(&url).connect().await.unwrap().clock(clock);
    conformance::check_all(connect).await;
}

/// Values outlive their state by the TTL margin.
#[tokio::test]
async fn an_override_that_has_expired_is_not_returned_while_its_value_is_kept() {
    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    let mails = Limit::new("mails", FixedWindow::per_day(10)).overridable();
    let limiter = Limiter::builder([mails]).store(Map::store(clock.clone(), Fault::None)).build();
    let overrides = limiter.overrides("mails").unwrap();
    overrides.set(1_u64, FixedWindow::per_day(50), Some(Duration::from_secs(60))).await.unwrap();
    for (seconds, expected) in [(59, true), (1, false), (1, false)] {
        clock.advance(Duration::from_secs(seconds));
        assert_eq!(overrides.get(1_u64).await.unwrap().is_some(), expected, "{:?}", clock.now());
    }
}

/// A map with compare-and-swap. The first `conflicts` writes of each value conflict with another process.
#[derive(Debug)]
struct Map {
    clock: ManualClock,
    values: Arc<Mutex<HashMap<String, Versioned>>>,
    /// The version of the last write.
    version: Arc<AtomicU64>,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Every second write conflicts.
    Conflicts,
    /// Writes are slow and do not compare versions.
    IgnoresVersions,
    /// Values expire at once.
    Forgets,
    /// The clock stands still.
    Stands,
    /// The versions of a key start again after its removal.
    ReusesVersions,
    /// A value is cut at its first zero byte.
    CutsValues,
    ReadsHang,
    WritesHang,
}

impl Map {
    fn store(clock: ManualClock, fault: Fault) -> CasStore<Self> {
        CasStore::new(Self::new(clock, fault))
    }

    fn new(clock: ManualClock, fault: Fault) -> Self {
        Self { clock, values: Arc::default(), version: Arc::default(), fault }
    }
}

impl CompareAndSwap for Map {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        tokio::task::yield_now().await;
        if self.fault == Fault::ReadsHang {
            pending().await
        }
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        assert!(ttl > Duration::ZERO);
        tokio::task::yield_now().await;
        if self.fault == Fault::WritesHang {
            pending().await
        }
        let mut values = self.values.lock().unwrap();
        let version = values.get(key).map(|value| value.version);
        if version != expected && self.fault != Fault::IgnoresVersions {
            return Ok(false);
        }
        let next = match self.fault {
            Fault::ReusesVersions => version.unwrap_or(0) + 1,
            _ => self.version.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if self.fault == Fault::Conflicts && next % 2 == 1 {
            // Another process has written the same value.
            if let Some(found) = values.get_mut(key) {
                found.version = next;
                return Ok(false);
            }
        }
        if self.fault != Fault::Forgets {
            let zero = value.iter().position(|byte| *byte == 0).filter(|_| self.fault == Fault::CutsValues);
            let value = value[..zero.unwrap_or(value.len())].to_vec();
            values.insert(key.to_owned(), Versioned { value, version: next });
        }
        Ok(true)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.values.lock().unwrap().remove(key);
        Ok(())
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(if self.fault == Fault::Stands { Timestamp::from_micros(1) } else { self.clock.now() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_with_compare_and_swap_conforms() {
    conformance::check_all(async |clock| Map::store(clock, Fault::None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_whose_writes_conflict_conforms() {
    conformance::check_all(async |clock| Map::store(clock, Fault::Conflicts)).await;
}

#[tokio::test]
async fn explanations_agree_with_the_decisions_of_a_store_with_compare_and_swap() {
    let mut checked = Checked::default();
    for seed in 0..50 {
        let clock = ManualClock::default();
        let store = || Map::store(clock.clone(), Fault::None);
        let stores = Stores { explained: store(), control: store(), clock: clock.clone() };
        check_limiter(seed, 25, Choices { queues: true }, stores, &mut checked).await;
    }
    assert!(checked.allowed > 50 && checked.denied > 50 && checked.locked_out > 0, "{checked:?}");
}

/// Returns how many charges are lost when two processes share a database.
async fn allowed_by_two_processes(fault: Fault) -> usize {
    let clock = ManualClock::default();
    let (values, version) = (Arc::default(), Arc::default());
    let limiter = || {
        let store = CasStore::new(Map {
            values: Arc::clone(&values),
            version: Arc::clone(&version),
            ..Map::new(clock.clone(), fault)
        });
        Limiter::builder([Limit::new("hundred", FixedWindow::per_day(100))]).store(store).patient().build()
    };
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let limiter = limiter();
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..100 {
                    allowed += usize::from(limiter.acquire("key", 1).await.unwrap().is_allowed());
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    let left = limiter().peek("key", 0).await.unwrap().outcomes()[0].remaining();
    allowed - (100 - usize::try_from(left).unwrap())
}

#[tokio::test]
async fn processes_that_share_a_database_lose_no_charge() {
    assert_eq!(allowed_by_two_processes(Fault::None).await, 0);
    assert!(allowed_by_two_processes(Fault::IgnoresVersions).await > 0, "the test can fail");
}

/// Each number of polls ends another step of the request: reading, or writing one of the two keys.
#[tokio::test]
async fn a_cancelled_request_leaves_all_its_limits_charged_or_none() {
    let limits = [Limit::new("one", FixedWindow::per_day(10)), Limit::new("other", FixedWindow::per_day(10))];
    let store = Map::store(ManualClock::default(), Fault::None);
    let limiter = Limiter::builder(limits).store(store).patient().build();
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
        let decision = limiter.peek(key, 0).await.unwrap();
        let [one, other] = [0, 1].map(|limit| decision.outcomes()[limit].remaining());
        assert_eq!(one, other, "remaining after {key} polls");
    }
    assert!(key > 4, "the request was cancelled at {key} steps only");
}

#[tokio::test(start_paused = true)]
async fn requests_to_a_hanging_database_do_not_accumulate() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for fault in [Fault::ReadsHang, Fault::WritesHang] {
        let limits = [Limit::new("one", FixedWindow::per_day(10)), Limit::new("other", FixedWindow::per_day(10))];
        let store = Map::store(ManualClock::default(), fault);
        let limiter = Limiter::builder(limits).store(store).circuit_breaker(CircuitBreaker::off()).build();
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

/// A store whose futures wait, as those of a store in a database do.
#[derive(Debug)]
struct Remote(Arc<MemoryStore>);

type Parts = Vec<(Arc<LimitSpec>, KeyHash, u64)>;

impl Remote {
    /// Runs an operation on the charges in the background, so that it completes even if its caller gives up.
    fn run<F>(&self, charges: &[Charge<'_>], operation: F) -> StoreFuture<Decision>
    where
        F: Fn(&MemoryStore, &[Charge<'_>]) -> StoreFuture<Decision> + Send + 'static,
    {
        let parts: Parts = charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
        let store = self.0.clone();
        let task = tokio::spawn(async move {
            tokio::task::yield_now().await;
            let charges: Vec<_> = parts.iter().map(|(spec, key, cost)| Charge::new(spec, *key, *cost)).collect();
            operation(&store, &charges).await
        });
        StoreFuture::pending(async move { task.await.unwrap() })
    }
}

impl Store for Remote {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::decide)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::peek)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let parts = refunds.iter().map(|refund| (refund.spec.clone(), refund.key, refund.cost, refund.mark));
        let (store, parts) = (self.0.clone(), parts.collect::<Vec<_>>());
        StoreFuture::pending(async move {
            tokio::task::yield_now().await;
            let refunds = parts.iter().map(|(spec, key, cost, mark)| Refund::new(spec, *key, *cost, *mark));
            store.refund(&refunds.collect::<Vec<_>>()).await
        })
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.0.reset(keys)
    }
}

#[tokio::test]
async fn a_store_of_another_crate_whose_futures_wait_conforms() {
    conformance::check_all(async |clock| Remote(Arc::new(MemoryStore::new().clock(clock)))).await;
}

/// A memory store with one defect.
#[derive(Debug)]
struct Wrong {
    store: Arc<MemoryStore>,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    PeeksCharge,
    ChargesOneByOne,
    /// Charges one by one as well, with a pause after each.
    StopsIfDropped,
    KeepsRefunds,
    KeepsResets,
}

impl Store for Wrong {
    fn hasher(&self) -> KeyHasher {
        self.store.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let combine =
            |decided: &[Decision]| Decision::new(decided[0].at(), decided.iter().flat_map(Decision::outcomes).cloned());
        match self.mistake {
            Mistake::ChargesOneByOne => {
                let decided = charges.iter().map(|charge| self.store.decide(&[*charge]).into_ready().unwrap().unwrap());
                StoreFuture::ready(Ok(combine(&decided.collect::<Vec<_>>())))
            }
            Mistake::StopsIfDropped => {
                let charges: Parts =
                    charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
                let store = self.store.clone();
                StoreFuture::pending(async move {
                    let mut decided = Vec::new();
                    for (spec, key, cost) in &charges {
                        decided.push(store.decide(&[Charge::new(spec, *key, *cost)]).await?);
                        tokio::task::yield_now().await;
                    }
                    Ok(combine(&decided))
                })
            }
            _ => self.store.decide(charges),
        }
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if self.mistake == Mistake::PeeksCharge { self.store.decide(charges) } else { self.store.peek(charges) }
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsRefunds { StoreFuture::ready(Ok(())) } else { self.store.refund(refunds) }
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsResets { StoreFuture::ready(Ok(())) } else { self.store.reset(keys) }
    }
}

async fn fails(check: impl Future<Output = ()>) -> bool {
    AssertUnwindSafe(check).catch_unwind().await.is_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_conformance_check_fails_for_a_store_with_that_defect() {
    let wrong = |mistake| async move |clock| Wrong { store: Arc::new(MemoryStore::new().clock(clock)), mistake };
    for mistake in [Mistake::PeeksCharge, Mistake::KeepsRefunds, Mistake::KeepsResets] {
        assert!(fails(conformance::check_algorithms(&wrong(mistake))).await, "{mistake:?}");
    }
    let one_by_one = wrong(Mistake::ChargesOneByOne);
    assert!(!fails(conformance::check_algorithms(&one_by_one)).await);
    assert!(fails(conformance::check_several_limits(&one_by_one)).await);
    assert!(fails(conformance::check_concurrency(&one_by_one)).await);

    assert!(fails(conformance::check_cancellation(&wrong(Mistake::StopsIfDropped))).await);

    let map = |fault| async move |clock| Map::store(clock, fault);
    assert!(fails(conformance::check_algorithms(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_algorithms(&map(Fault::Stands))).await);
    assert!(fails(conformance::check_overrides(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_penalties(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_modes(&map(Fault::Forgets))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn compare_and_swap_is_checked_by_itself() {
    let check = |fault| conformance::check_compare_and_swap(Arc::new(Map::new(ManualClock::default(), fault)));
    check(Fault::None).await;
    for fault in [Fault::IgnoresVersions, Fault::Forgets, Fault::ReusesVersions, Fault::CutsValues] {
        assert!(fails(check(fault)).await, "{fault:?}");
    }
}
