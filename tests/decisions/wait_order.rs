//! The order in which operations wait, and how many decisions they need.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use support::calls::Calls;
use support::faulty_store::{FaultyStore, Mode, Operation};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance, sleep};
use tower_ratelimit::{
    AcquireError, Algorithm, DecisionRecord, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits, MemoryStore,
    Recorder, Store, TokenBucket,
};

const TENTH: Duration = Duration::from_millis(100);

/// A limiter with a token each 100 ms.
fn bucket(capacity: u32) -> Limiter {
    limiter(TokenBucket::new(capacity, 1, TENTH), MemoryStore::new())
}

fn limiter(algorithm: impl Into<Algorithm>, store: impl Store) -> Limiter {
    Limiter::builder(Limit::new("limit", algorithm)).store(store).build()
}

/// The waiters that were served, with the instants after the first call.
#[derive(Clone)]
struct Served(Arc<Mutex<Vec<(u64, Duration)>>>, Instant);

impl Served {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// Starts a task that waits, and lets it call.
    async fn begin(&self, limiter: &Limiter, waiter: u64, cost: u64) -> JoinHandle<()> {
        let (served, limiter) = (self.clone(), limiter.clone());
        let task = tokio::spawn(async move {
            assert!(limiter.wait("key", cost).await.unwrap().is_allowed());
            served.0.lock().unwrap().push((waiter, served.1.elapsed()));
        });
        yield_now().await;
        task
    }

    /// Starts waiters with these costs, numbered in their order.
    async fn begin_all(&self, limiter: &Limiter, costs: impl IntoIterator<Item = u64>) -> Vec<JoinHandle<()>> {
        let mut waiters = Vec::new();
        for (waiter, cost) in (0..).zip(costs) {
            waiters.push(self.begin(limiter, waiter, cost).await);
        }
        waiters
    }

    /// Returns the waiters in their order, and after how many tenths of a second each was served.
    fn tenths(&self) -> Vec<(u64, u128)> {
        self.0.lock().unwrap().iter().map(|(waiter, after)| (*waiter, after.as_millis() / 100)).collect()
    }
}

async fn end(waiters: Vec<JoinHandle<()>>) {
    join_all(waiters).await.into_iter().for_each(Result::unwrap);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_key_are_served_in_the_order_of_their_calls() {
    let (limiter, served) = (bucket(3), Served::new());
    let _ = limiter.acquire("key", 3).await.unwrap();
    let costs = [1, 3, 1, 2, 1, 1, 3, 2, 1, 1];
    end(served.begin_all(&limiter, costs).await).await;
    let ends = costs.iter().scan(0, |sum, cost| {
        *sum += u128::from(*cost);
        Some(*sum)
    });
    assert_eq!(served.tenths(), (0..).zip(ends).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn small_operations_do_not_starve_a_large_one() {
    let (limiter, served) = (bucket(5), Served::new());
    let _ = limiter.acquire("key", 5).await.unwrap();
    let mut waiters = vec![served.begin(&limiter, 5, 5).await];
    // Each finds a token that nobody has taken yet.
    for _ in 0..20 {
        advance(TENTH).await;
        waiters.push(served.begin(&limiter, 1, 1).await);
    }
    end(waiters).await;
    assert_eq!(served.tenths()[0], (5, 5));
}

#[tokio::test(start_paused = true)]
async fn each_waiter_needs_few_decisions() {
    const WAITERS: usize = 200;
    let store = FaultyStore::new(Mode::Works);
    let (limiter, served) = (limiter(TokenBucket::new(2, 1, TENTH), store.clone()), Served::new());
    end(served.begin_all(&limiter, [1; WAITERS]).await).await;
    assert_eq!(served.tenths().last().unwrap().1, WAITERS as u128 - 2, "no later than the limit allows");
    let (decisions, peeks) = (store.asked(Operation::Decide), store.asked(Operation::Peek));
    assert!(decisions <= 2 * WAITERS, "{decisions} decisions for {WAITERS} waiters");
    assert!(peeks <= WAITERS, "{peeks} calls that take nothing for {WAITERS} waiters");
}

/// Takes the tokens that the first allowed operation leaves, and counts the decisions.
struct Thief {
    limiter: Limiter,
    decisions: AtomicUsize,
    has_taken: AtomicBool,
}

impl Recorder for Thief {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        if decision.decision.is_allowed() && !self.has_taken.swap(true, Ordering::Relaxed) {
            let taken = self.limiter.acquire("key", 99).into_ready().expect("memory answers at once");
            assert!(taken.expect("a decision").is_allowed());
        }
    }
}

/// A waiter whose turn was shared once waits for a turn of its own.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_tokens_are_taken_by_others_does_not_ask_for_each_of_them() {
    let store = Arc::new(MemoryStore::new());
    let algorithm = TokenBucket::new(100, 1, TENTH);
    let other = limiter(algorithm, store.clone());
    let thief =
        Arc::new(Thief { limiter: other.clone(), decisions: AtomicUsize::new(0), has_taken: AtomicBool::new(false) });
    let limits = [Limit::new("limit", algorithm)];
    let (limiter, served) = (Limiter::builder(limits).store(store).recorder(thief.clone()).build(), Served::new());
    let _ = other.acquire("key", 100).await.unwrap();
    let waiters = served.begin_all(&limiter, [1; 3]).await;
    other.reset("key").await.unwrap();
    end(waiters).await;
    assert_eq!(served.tenths().iter().map(|(_, tenths)| *tenths).collect::<Vec<_>>(), [1, 2, 3]);
    let decisions = thief.decisions.load(Ordering::Relaxed);
    assert!(decisions <= 9, "{decisions} decisions");
}

/// Tokens that have accumulated are taken together, not one per round trip.
#[tokio::test(start_paused = true)]
async fn a_slow_store_serves_waiters_together() {
    const CALLS: u32 = 50;
    let store = FaultyStore::new(Mode::Slow(Duration::from_millis(20)));
    // Ten tokens per round trip.
    let limiter = limiter(TokenBucket::new(20, 1, Duration::from_millis(2)), store.clone());
    let start = Instant::now();
    let workers = (0..40).map(async |_| {
        for _ in 0..CALLS {
            assert!(limiter.wait("key", 1).await.unwrap().is_allowed());
        }
    });
    join_all(workers).await;
    let ideal = Duration::from_millis(2) * (40 * CALLS - 20);
    assert!(start.elapsed() < 2 * ideal, "{:?} instead of {ideal:?}", start.elapsed());
    let decisions = store.asked(Operation::Decide);
    assert!(decisions <= 3 * 40 * CALLS as usize, "{decisions} decisions");
}

/// A slow store reports tokens that others take before the next turns.
#[tokio::test(start_paused = true)]
async fn waiters_whose_tokens_others_take_are_served_later() {
    let store = FaultyStore::new(Mode::Works);
    let five_per_second = TokenBucket::new(5, 5, Duration::from_secs(1)).at_intervals();
    let (limiter, other) = (limiter(five_per_second, store.clone()), limiter(five_per_second, store.clone()));
    let _ = other.acquire("key", 5).await.unwrap();
    let served = Served::new();
    store.set(Mode::Slow(Duration::from_millis(20)));
    let waiters = served.begin_all(&limiter, [1; 8]).await;
    // The first is being decided.
    sleep(Duration::from_millis(1_030)).await;
    assert!(other.allows("key", 4).await);
    end(waiters).await;
    let order: Vec<u64> = served.tenths().into_iter().map(|(waiter, _)| waiter).collect();
    assert_eq!(order, [0, 5, 6, 7, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_frees_its_place_at_once() {
    let (limiter, served) = (bucket(3), Served::new());
    let _ = limiter.acquire("key", 3).await.unwrap();
    let first = served.begin(&limiter, 0, 3).await;
    let middle = served.begin(&limiter, 1, 3).await;
    let last = served.begin(&limiter, 2, 1).await;
    middle.abort();
    first.abort();
    last.await.unwrap();
    assert_eq!(served.tenths(), [(2, 1)]);
    // Nobody waits, so an operation that the limit allows is served at once.
    advance(TENTH).await;
    assert!(limiter.wait("key", 1).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let (limiter, served) = (bucket(3), Served::new());
    let _ = limiter.acquire("key", 3).await.unwrap();
    let waiter = served.begin(&limiter, 0, 1).await;
    assert!(limiter.wait("other key", 3).now_or_never().is_some());
    assert!(limiter.clone().wait("key", 0).now_or_never().is_some(), "it takes nothing from those who wait");
    waiter.await.unwrap();
    assert_eq!(served.tenths(), [(0, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_others_ends_after_the_longest_time() {
    let (limiter, served) = (bucket(5), Served::new());
    let _ = limiter.acquire("key", 5).await.unwrap();
    let first = served.begin(&limiter, 0, 5).await;
    let start = Instant::now();

    // What the limits don't allow in time is reported at once.
    for (cost, expected) in [(6, None), (4, Some(4 * TENTH))] {
        let error = limiter.wait_at_most("key", cost, 3 * TENTH).now_or_never().unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Denied { retry_after, .. } if retry_after == expected), "{error:?}");
    }
    // The limit would allow it after 200 ms, but others come first.
    let error = limiter.wait_at_most("key", 2, 3 * TENTH).await.unwrap_err();
    assert_eq!(start.elapsed().as_millis() / 100, 3);
    assert!(matches!(error, AcquireError::Denied { retry_after: Some(Duration::ZERO), .. }), "{error:?}");
    // It left its place, and took nothing.
    first.await.unwrap();
    assert_eq!(served.tenths(), [(0, 5)]);

    let (_first, start) = (served.begin(&limiter, 0, 1).await, Instant::now());
    assert!(limiter.wait_at_most("key", 1, 2 * TENTH).await.unwrap().is_allowed(), "just long enough");
    assert_eq!(start.elapsed().as_millis() / 100, 2);
}

/// Only an operation that finds the queue full waits outside, and those behind it enter together.
#[tokio::test(start_paused = true)]
async fn operations_keep_waiting_together_in_a_leaky_bucket_queue() {
    let (limiter, served) = (limiter(LeakyBucketQueue::new(5, 1, TENTH), MemoryStore::new()), Served::new());
    let mut waiters = Vec::new();
    for waiter in 0..12 {
        waiters.push(served.begin(&limiter, waiter, 1).await);
        assert_eq!(limiter.left("key").await, [5_u64.saturating_sub(waiter)], "slots after waiter {waiter}");
    }
    end(waiters).await;
    assert_eq!(served.tenths(), (0..12).map(|waiter| (waiter, u128::from(waiter))).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_reported_to_each_waiter() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = limiter(TokenBucket::new(1, 1, TENTH), store.clone());
    let _ = limiter.acquire("key", 1).await.unwrap();
    let waiters = join_all((0..5).map(|_| limiter.wait("key", 1)));
    let failing = async {
        sleep(TENTH / 2).await;
        store.set(Mode::Fails);
    };
    let (results, ()) = tokio::join!(waiters, failing);
    assert!(results.iter().all(|result| matches!(result, Err(AcquireError::Store(_)))), "{results:?}");
}

/// A waiter keeps its limits, and those who call later don't wait for it.
#[tokio::test(start_paused = true)]
async fn waiters_under_replaced_limits_have_a_queue_of_their_own() {
    let daily = |tokens| [Limit::new("daily", FixedWindow::per_day(tokens))];
    let limits = LiveLimits::new(daily(1));
    let (limiter, served) = (Limiter::live_builder(&limits).build(), Served::new());
    let _ = limiter.acquire("key", 1).await.unwrap();
    let _waiters = served.begin_all(&limiter, [1, 1]).await;
    limits.replace(daily(3)).unwrap();
    assert!(limiter.wait("key", 2).now_or_never().is_some());
    assert_eq!(served.tenths(), []);
}

/// Each waiter is denied by one of several limits.
#[tokio::test(start_paused = true)]
async fn waiters_of_several_limits_are_served_in_order() {
    let limits = [("fast", TokenBucket::new(2, 1, TENTH)), ("slow", TokenBucket::new(4, 2, 3 * TENTH))];
    let limiter = Limiter::new(limits.map(|(name, bucket)| Limit::new(name, bucket)));
    let served = Served::new();
    end(served.begin_all(&limiter, [1, 2].repeat(5)).await).await;
    assert!(served.tenths().iter().map(|(waiter, _)| *waiter).eq(0..10), "{:?}", served.tenths());
}
