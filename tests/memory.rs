//! Memory: it is bounded, freed, and not allocated for decisions. A counting allocator measures it.
//!
//! Figures are printed: `cargo test --release --test memory -- --nocapture --test-threads 1`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::store::Sketch;
use tower_ratelimit::{
    Algorithm, CalendarWindow, Decision, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, ManualClock,
    MemoryStore, Permit, RateLimitLayer, SlidingLog, SlidingWindow, SlidingWindowCounter, Timestamp, TokenBucket,
};

use self::counting::{allocations, live_bytes};

#[path = "../examples/server/metrics.rs"]
mod exporter;

/// An allocator with counts for each thread, so that concurrent tests are independent.
mod counting {
    // Implementing an allocator is unsafe.
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    thread_local! {
        static LIVE: Cell<isize> = const { Cell::new(0) };
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    }

    /// The bytes that this thread has allocated and not freed.
    pub(crate) fn live_bytes() -> isize {
        LIVE.get()
    }

    /// The number of allocations of this thread.
    pub(crate) fn allocations() -> usize {
        ALLOCATIONS.get()
    }

    fn count(bytes: isize, allocations: usize) {
        // A thread frees memory after its counters have been dropped.
        let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + allocations));
    }

    // SAFETY: all calls are forwarded to the system allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size() as isize, 1);
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            count(-(layout.size() as isize), 0);
            unsafe { System.dealloc(pointer, layout) }
        }
    }
}

/// The most bytes per key.
const BYTES_PER_KEY: usize = 53;

const DAY: Duration = Duration::from_secs(86_400);

struct Subject {
    clock: ManualClock,
    store: Arc<MemoryStore>,
    /// Allocated before the store.
    before: isize,
}

impl Subject {
    fn new(max_keys: usize) -> Self {
        let before = live_bytes();
        let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
        let store = Arc::new(MemoryStore::new().max_keys(max_keys).clock(clock.clone()));
        Self { clock, store, before }
    }

    fn limiter(&self, name: &str, algorithm: impl Into<Algorithm>) -> Limiter {
        Limiter::builder([Limit::new(name, algorithm)]).store(Arc::clone(&self.store)).build()
    }

    fn allocated(&self) -> usize {
        usize::try_from(live_bytes() - self.before).unwrap()
    }
}

fn acquire(limiter: &Limiter, key: u64) -> Decision {
    limiter.acquire(key, 1).into_ready().unwrap().unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Eight limits of two per day, with twenty exhausted keys each.
fn denied(subject: &Subject) -> Vec<Limiter> {
    let limiters = vec![
        subject.limiter("window", FixedWindow::new(2, DAY)),
        subject.limiter("log", SlidingLog::new(2, DAY)),
        subject.limiter("sliding", SlidingWindow::new(2, DAY).buckets(24)),
        subject.limiter("counter", SlidingWindowCounter::new(2, DAY)),
        subject.limiter("tokens", TokenBucket::new(2, 2, DAY)),
        subject.limiter("refilled", TokenBucket::new(2, 1, DAY).at_intervals()),
        subject.limiter("meter", LeakyBucket::new(2, 2, DAY)),
        subject.limiter("queue", LeakyBucketQueue::new(1, 1, DAY)),
    ];
    for limiter in &limiters {
        for victim in 0..20 {
            while acquire(limiter, victim).is_allowed() {}
        }
    }
    limiters
}

/// Sends `batches` of 10,000 new keys. Each key exhausts its limit, for longer than the denied ones, but is not denied
/// itself.
fn flood(algorithm: impl Into<Algorithm>, batches: u64, bytes_per_key: usize) {
    const MAX_KEYS: usize = 100_000;
    const BATCH: u64 = 10_000;
    let subject = Subject::new(MAX_KEYS);
    let denied = denied(&subject);
    let limiter = subject.limiter("flood", algorithm);
    let (mut times, mut most) = (Vec::new(), 0);
    for batch in 0..batches {
        let start = Instant::now();
        for key in batch * BATCH..(batch + 1) * BATCH {
            assert!(acquire(&limiter, key).is_allowed());
        }
        times.push(start.elapsed() / BATCH as u32);
        most = most.max(subject.allocated());
        assert!(subject.store.keys() <= MAX_KEYS, "{} keys", subject.store.keys());
    }
    println!("{} keys take {most} bytes at most, {} each", batches * BATCH, most / MAX_KEYS);
    // Locks, limiters, and the few keys of the other type.
    assert!(most <= bytes_per_key * MAX_KEYS + 100_000, "{most} bytes");

    let half = times.split_off(times.len() / 2);
    let (late, early) = (median(half), median(times));
    println!("a request takes {early:?} in the first half, {late:?} in the second");
    assert!(late <= early * 20, "{early:?} a request in the first half, {late:?} in the second");

    for limiter in &denied {
        for victim in 0..20 {
            assert!(!acquire(limiter, victim).is_allowed(), "{:?} no longer deny {victim}", limiter.limits());
        }
    }
}

#[test]
fn a_flood_of_keys_takes_bounded_memory_and_evicts_no_denied_key() {
    flood(TokenBucket::new(1, 1, 30 * DAY), 200, BYTES_PER_KEY);
}

#[test]
fn a_flood_of_logs_takes_bounded_memory_and_evicts_no_denied_key() {
    // A slot of a log takes twice as much, and contains one request.
    flood(SlidingLog::new(1, 30 * DAY), 40, 2 * BYTES_PER_KEY);
}

/// Expired buckets of a window are reused.
#[test]
fn a_sliding_window_takes_24_bytes_for_each_further_bucket() {
    const KEYS: usize = 1_000;
    const BUCKETS: usize = 96;
    let subject = Subject::new(2 * KEYS);
    let window = SlidingWindow::new(u32::MAX, DAY).buckets(BUCKETS as u32);
    let limiter = subject.limiter("window", window);
    let one_each = || {
        (0..KEYS as u64).for_each(|key| assert!(acquire(&limiter, key).is_allowed()));
        subject.allocated() / KEYS
    };
    let one = one_each();
    assert!(one <= 2 * BYTES_PER_KEY, "{one} bytes a key with one bucket in use");
    let quarter_of_an_hour = DAY / BUCKETS as u32;
    let mut most = one;
    for _ in 0..10 * BUCKETS {
        subject.clock.advance(quarter_of_an_hour);
        most = most.max(one_each());
    }
    assert!(most <= one + 24 * (BUCKETS - 1), "{most} bytes a key with {BUCKETS} buckets in use, {one} with one");

    // All but two buckets have expired.
    subject.clock.advance(quarter_of_an_hour * (BUCKETS as u32 - 2));
    let few = one_each();
    println!("a key takes {one} bytes with one bucket in use, {most} with {BUCKETS}, {few} with three");
    assert!(few <= one + 24 * 32, "{few} bytes a key with three buckets in use again");
}

#[test]
fn expired_entries_are_swept() {
    const KEYS: u64 = 50_000;
    let subject = Subject::new(1_000_000);
    let [records, logs] =
        [subject.limiter("tokens", TokenBucket::per_second(10)), subject.limiter("log", SlidingLog::per_second(100))];
    let empty = subject.allocated();
    for key in 0..KEYS {
        let _ = acquire(&records, key);
        let _ = acquire(&logs, key % 5_000);
    }
    let full = subject.allocated();
    assert_eq!(subject.store.keys(), KEYS as usize + 5_000);

    subject.clock.advance(Duration::from_secs(2));
    // Requests of another key sweep a few entries each, and fewer when few expired ones remain.
    for _ in 0..8 * KEYS {
        let _ = acquire(&records, 7);
    }
    let remaining = subject.allocated() - empty;
    println!("{} keys in {full} bytes, then {} in {remaining} more than none", KEYS + 5_000, subject.store.keys());
    assert_eq!(subject.store.keys(), 1);
    // A few slots in each of 256 shards, for both types.
    assert!(remaining <= 256 * (16 * 32 + 24 * 64), "{remaining} bytes for one key");
}

/// A request of many limits adds as many keys, and sweeps more entries.
#[test]
fn expired_entries_of_many_limits_are_swept() {
    const KEYS: u64 = 300_000;
    for limits in [1, 5, 30, 64] {
        let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
        let store = Arc::new(MemoryStore::new().max_keys(150_000).clock(clock.clone()));
        let all =
            (0..limits).map(|limit| Limit::new(limit.to_string(), FixedWindow::new(10, Duration::from_millis(1))));
        let limiter = Limiter::builder(all).store(store.clone()).build();
        for key in 0..KEYS / limits {
            assert!(acquire(&limiter, key).is_allowed());
            // All earlier entries have expired, a second ago.
            clock.advance(Duration::from_millis(1_001));
        }
        println!("{limits} limits: {} of {KEYS} keys remain", store.keys());
        assert!(store.keys() < 50_000, "{limits} limits: {} keys", store.keys());
    }
}

#[test]
fn a_million_keys_take_53_bytes_each_at_most() {
    const KEYS: u64 = 1_000_000;
    let subject = Subject::new(2 * KEYS as usize);
    let limiter = subject.limiter("tokens", TokenBucket::per_day(10));
    let mut longest = Duration::ZERO;
    let mut worst = 0.0_f64;
    for key in 0..KEYS {
        let start = Instant::now();
        let _ = acquire(&limiter, key);
        longest = longest.max(start.elapsed());
        if key >= KEYS / 2 && key % 1_000 == 0 {
            worst = worst.max(subject.allocated() as f64 / key as f64);
        }
    }
    let each = subject.allocated() as f64 / KEYS as f64;
    println!("{each:.1} bytes a key at a million, {worst:.1} at worst from half a million on");
    println!("the longest insert took {longest:?}");
    assert!(each.max(worst) <= BYTES_PER_KEY as f64, "{each} bytes a key, {worst} at worst");
    let reported = subject.store.bytes() as f64 / KEYS as f64;
    assert!((reported - each).abs() < 0.5, "the store reports {reported} bytes a key, but uses {each}");
}

/// One shard, repeated many times: entries that overflow its last slots do not double it.
#[test]
fn from_a_thousand_keys_on_none_takes_more_than_53_bytes() {
    let mut worst = 0.0_f64;
    for _ in 0..60 {
        let subject = Subject::new(4_000);
        let limiter = subject.limiter("tokens", TokenBucket::per_day(10));
        for key in 0..4_000_u64 {
            let _ = acquire(&limiter, key);
            if key >= 1_000 {
                worst = worst.max((subject.store.bytes() as f64) / (key + 1) as f64);
            }
        }
    }
    println!("{worst:.1} bytes a key at worst, from a thousand on");
    assert!(worst <= BYTES_PER_KEY as f64, "{worst} bytes a key");
}

#[test]
fn a_decision_of_one_limit_allocates_nothing_and_one_of_several_once() {
    let algorithms: [Algorithm; 9] = [
        FixedWindow::new(100, DAY).into(),
        SlidingWindowCounter::new(100, DAY).into(),
        TokenBucket::new(100, 100, DAY).into(),
        TokenBucket::new(100, 100, DAY).at_intervals().into(),
        LeakyBucket::new(100, 100, DAY).into(),
        LeakyBucketQueue::new(100, 100, DAY).into(),
        TokenBucket::new(50_000, 1, DAY).into(),
        // One bucket, and one instant, because more would be on the heap.
        SlidingWindow::new(100, DAY).into(),
        SlidingLog::new(100, DAY).into(),
    ];
    for algorithm in algorithms {
        let subject = Subject::new(1_000);
        let named = |name| Limit::new(name, algorithm);
        for limits in [vec![named("one")], vec![named("one"), named("other")]] {
            let for_each = usize::from(limits.len() > 1);
            let limiter = Limiter::builder(limits).store(Arc::clone(&subject.store)).build();
            let _ = acquire(&limiter, 1);
            let before = allocations();
            for _ in 0..150 {
                // Allowed, then denied.
                drop(limiter.refund(acquire(&limiter, 1).into_receipt()));
                drop(limiter.peek("user:42", 1));
                let _ = acquire(&limiter, 1);
            }
            assert_eq!(allocations() - before, 3 * 150 * for_each, "{algorithm:?}");
        }
    }
}

/// The sketch is allocated when the limiter is built, with the stated size, and its windows rotate in place.
#[test]
fn a_flood_of_keys_in_a_sketch_allocates_nothing() {
    const KEYS: usize = 1_000;
    const MINUTE: Duration = Duration::from_secs(60);
    let sketch = Sketch::new().error(0.001).expected_keys(10_000);
    let algorithms: [Algorithm; 3] = [
        FixedWindow::new(5, MINUTE).into(),
        SlidingWindowCounter::new(5, MINUTE).into(),
        CalendarWindow::daily(5).into(),
    ];
    for algorithm in algorithms {
        for (store, advances) in
            [(MemoryStore::sketch(sketch), true), (MemoryStore::new().max_keys(KEYS).overflow(sketch), false)]
        {
            let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
            let store = Arc::new(store.clock(clock.clone()));
            let (before, stated) = (live_bytes(), store.sketch_bytes(algorithm));
            let limiter = Limiter::builder([Limit::new("limit", algorithm)]).store(store.clone()).build();
            let taken = usize::try_from(live_bytes() - before).unwrap();
            assert!((stated..stated + 10_000).contains(&taken), "{taken} bytes are taken, {stated} are stated");
            // The table grows until it is full.
            (0..KEYS as u64).for_each(|key| drop(acquire(&limiter, key)));
            let (before, live) = (allocations(), live_bytes());
            for key in 0..100_000 {
                let _ = acquire(&limiter, key);
                if advances {
                    clock.advance(Duration::from_millis(10));
                }
            }
            assert_eq!((allocations(), live_bytes()), (before, live), "{algorithm}");
        }
    }
}

/// A task that charges for each row of a long stream, by one permit.
#[test]
fn a_permit_takes_bounded_memory_for_any_number_of_charges() {
    let algorithms: [Algorithm; 5] = [
        FixedWindow::new(1_000_000, DAY).into(),
        SlidingWindowCounter::new(1_000_000, DAY).into(),
        TokenBucket::new(1_000_000, 100, DAY).into(),
        TokenBucket::new(1_000_000, 100, DAY).at_intervals().into(),
        LeakyBucket::new(1_000_000, 100, DAY).into(),
    ];
    for algorithm in algorithms {
        let subject = Subject::new(1_000);
        let limits = RateLimitLayer::builder([Limit::new("rows", algorithm)]).permits().store(subject.store.clone());
        let permit = OnceLock::new();
        let handler = service_fn(|request: Request<()>| {
            let _ = permit.set(Permit::of(request.extensions()).unwrap());
            ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        });
        let _ = limits.build().layer(handler).call(Request::new(())).now_or_never();
        let permit = permit.get().unwrap();
        let charge = |times| {
            let began = Instant::now();
            for _ in 0..times {
                subject.clock.advance(Duration::from_micros(100));
                assert!(permit.charge(1).now_or_never().unwrap().unwrap().is_allowed());
            }
            began.elapsed()
        };
        charge(2_000);
        let (before, few) = (live_bytes(), charge(2_000));
        charge(20_000);
        let (after, many) = (live_bytes(), charge(2_000));
        println!("{algorithm:?}: {} bytes more, {few:?}, then {many:?}", after - before);
        assert!(after - before < 400_000, "{algorithm:?}: {} bytes", after - before);
        assert!(many < 10 * few, "{algorithm:?}: {few:?}, then {many:?}");
        permit.refund().now_or_never().unwrap().unwrap();
        let left = permit.decision().outcomes()[0].remaining();
        assert!(left > 999_900, "{algorithm:?}: {left} tokens are left");
    }
}

/// All on this thread, because its allocations are counted.
#[tokio::test]
async fn requests_to_a_hanging_redis_take_bounded_memory() {
    use support::limits::Patient;
    use tower_ratelimit::RedisConfig;

    const REQUESTS: u64 = 8_000;
    let server = support::redis_server::RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    let limiter = Limiter::builder([Limit::new("limit", TokenBucket::per_second(1))])
        .patient()
        .store(store)
        .deadline(Duration::from_millis(100))
        .build();
    server.pause();
    let mut after = Vec::new();
    for wave in 0..10 {
        let tasks = (0..REQUESTS).map(|key| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire(wave * REQUESTS + key, 1).await.map(drop) })
        });
        for task in tasks.collect::<Vec<_>>() {
            assert!(task.await.unwrap().is_err());
        }
        after.push(live_bytes());
    }
    println!("bytes after each wave: {after:?}");
    let grown = after[9] - after[0];
    assert!(grown < 1 << 20, "memory grew by {grown} bytes in nine more waves");
}

/// Without upkeep, the exporter would keep 16 bytes of each decision of a store until the next scrape.
#[tokio::test(start_paused = true)]
async fn metrics_of_the_example_server_take_bounded_memory_while_nobody_scrapes() {
    use support::faulty_store::{FaultyStore, Mode};

    const REQUESTS: u64 = 10_000;
    let (recorder, _route) = exporter::install().unwrap();
    let limiter = Limiter::builder([Limit::new("limit", TokenBucket::per_second(1))])
        .store(FaultyStore::new(Mode::Works))
        .recorder(recorder)
        .build();
    let mut after = Vec::new();
    for _minute in 0..10 {
        for _ in 0..REQUESTS {
            assert!(limiter.acquire("key", 0).await.unwrap().is_allowed());
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        after.push(live_bytes());
    }
    println!("bytes after each minute: {after:?}");
    let grown = after[9] - after[0];
    assert!(grown < 16 * REQUESTS as isize, "memory grew by {grown} bytes in nine more minutes");
}
