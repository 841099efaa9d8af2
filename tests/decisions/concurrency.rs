//! Concurrency: exactly the limit is admitted, without deadlocks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::future::join_all;
use support::calls::{Calls, Now, Outcomes};
use support::store_fixture::midnight;
use support::time::MIDNIGHT;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tower_ratelimit::{Clock, FixedWindow, Limit, Limiter, MemoryStore, SlidingLog, Timestamp, TokenBucket};

use crate::rule::one_of_each;
use crate::subject::{KEY, Subject};
use support::rule::{Kind, Rule};

const TASKS: u64 = 16;

/// More threads than cores, so that threads are preempted at arbitrary points.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(TASKS as usize).build().unwrap()
}

/// Runs `work` in several threads that start together, and returns their results.
fn all_at_once<T, F>(runtime: &Runtime, work: impl Fn(u64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(TASKS as usize));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (barrier, work) = (Arc::clone(&barrier), work(task));
            runtime.spawn(async move {
                barrier.wait().await;
                work.await
            })
        })
        .collect();
    runtime.block_on(join_all(tasks)).into_iter().map(Result::unwrap).collect()
}

/// Fails if `test` fails or hangs.
fn with_timeout(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it is stuck"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

#[test]
fn exactly_the_limit_is_admitted() {
    let runtime = runtime();
    for rule in one_of_each(1_000) {
        for round in 0..12 {
            let subject = Subject::new(&[rule]);
            subject.set(MIDNIGHT + round);
            let cost = 1 + round % 3;
            let admitted = all_at_once(&runtime, |_| {
                let limiter = subject.limiter.clone();
                async move {
                    let mut admitted = 0;
                    for _ in 0..150 {
                        admitted += u64::from(limiter.allows(KEY, cost).await);
                    }
                    admitted
                }
            });
            let admitted: u64 = admitted.iter().sum();
            assert_eq!(admitted, rule.capacity() / cost, "{rule:?} at cost {cost}, round {round}");
            assert_eq!(subject.remaining(), rule.capacity() % cost, "{rule:?}");
        }
    }
}

/// With concurrent charges and refunds, no more than the limit is charged at any time. At the end, all tokens are back.
#[test]
fn refunds_give_back_exactly_what_was_taken() {
    let runtime = runtime();
    for rule in one_of_each(20) {
        if matches!(rule, Rule::Bucket { kind: Kind::Queue { .. }, .. }) {
            continue;
        }
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        let out = Arc::new(AtomicU64::new(0));
        let most = all_at_once(&runtime, |task| {
            let (limiter, out) = (subject.limiter.clone(), Arc::clone(&out));
            async move {
                let (mut most, cost) = (0, 1 + task % 3);
                for _ in 0..300 {
                    let decision = limiter.acquire(KEY, cost).await.unwrap();
                    if decision.is_allowed() {
                        most = most.max(out.fetch_add(cost, Ordering::SeqCst) + cost);
                        tokio::task::yield_now().await;
                        out.fetch_sub(cost, Ordering::SeqCst);
                        limiter.refund(decision.into_receipt()).await.unwrap();
                    }
                }
                most
            }
        });
        assert!(most.into_iter().all(|most| most <= rule.capacity()), "{rule:?}");
        assert_eq!(subject.remaining(), rule.capacity(), "{rule:?}");
        assert!(subject.peek(0).outcomes()[0].reset_after().is_zero(), "{rule:?}");
    }
}

/// Two limiters on one store have the same two limits in opposite orders.
fn opposites() -> [Limiter; 2] {
    let clock = midnight();
    let store = Arc::new(MemoryStore::new().max_keys(100_000).clock(clock));
    let loose = Limit::new("loose", FixedWindow::per_day(10));
    let tight = Limit::new("tight", SlidingLog::per_day(5));
    let orders = [[loose.clone(), tight.clone()], [tight, loose]];
    orders.map(|limits| Limiter::builder(limits).store(Arc::clone(&store)).build())
}

#[test]
fn limits_in_opposite_orders_neither_deadlock_nor_charge_for_denials() {
    with_timeout(|| {
        let limiters = opposites();
        let admitted = all_at_once(&runtime(), |task| {
            let limiter = limiters[task as usize % 2].clone();
            async move {
                let mut admitted = vec![0_u64; 1_000];
                for step in 0..1_000 {
                    // Each thread starts elsewhere, and half of them run backwards.
                    let key = if task % 4 < 2 { step } else { 999 - step };
                    let key = (key + task * 61) % 1_000;
                    admitted[key as usize] += u64::from(limiter.allows(key, 1).await);
                }
                admitted
            }
        });
        for key in 0..1_000_u64 {
            let admitted: u64 = admitted.iter().map(|admitted| admitted[key as usize]).sum();
            assert_eq!(admitted, 5, "of key {key}");
            let left = limiters[0].peek(key, 0).now().remaining();
            assert_eq!(left, [5, 0], "the loose limit has paid for what the tight one denied");
        }
    });
}

/// Each request charges two keys, in either order.
#[test]
fn requests_with_two_keys_neither_deadlock_nor_lose_a_token() {
    const KEYS: u64 = 1_000;
    with_timeout(|| {
        let clock = midnight();
        let limit = |name: &str| Limit::new(name, TokenBucket::per_second(20));
        let store = MemoryStore::new().max_keys(100_000).clock(clock);
        let limiter = Limiter::builder([limit("from"), limit("to")]).store(store).build();
        let taken = all_at_once(&runtime(), |task| {
            let limiter = limiter.clone();
            async move {
                let mut taken = [vec![0_u64; KEYS as usize], vec![0_u64; KEYS as usize]];
                for step in 0..2_000 {
                    let one = (step * 7 + task) % KEYS;
                    let other = (step * 13 + task * 5) % KEYS;
                    let [from, to] = if task % 2 == 0 { [one, other] } else { [other, one] };
                    let costs = [1 + step % 3, 1 + task % 2];
                    let decision = limiter.acquire_charges(&[(&from, costs[0]), (&to, costs[1])]).await.unwrap();
                    if decision.is_allowed() {
                        taken[0][from as usize] += costs[0];
                        taken[1][to as usize] += costs[1];
                    }
                }
                taken
            }
        });
        for key in 0..KEYS {
            for (limit, left) in limiter.peek(key, 0).now().remaining().into_iter().enumerate() {
                let taken: u64 = taken.iter().map(|taken| taken[limit][key as usize]).sum();
                assert_eq!(taken + left, 20, "tokens lost or made, limit {limit} of key {key}");
            }
        }
    });
}

/// A clock that panics once, while another thread waits for the lock of the thread that reads it.
#[derive(Debug)]
struct Failing {
    fails: AtomicBool,
    waits: std::sync::Barrier,
}

impl Clock for Failing {
    fn now(&self) -> Timestamp {
        if self.fails.swap(false, Ordering::SeqCst) {
            self.waits.wait();
            // Long enough for the other thread to wait for the lock.
            std::thread::sleep(Duration::from_millis(50));
            panic!("there is no time");
        }
        Timestamp::from_micros(MIDNIGHT)
    }
}

/// A clock panics while the lock of a key is held. Requests that wait for the lock, and later ones, are decided.
#[test]
fn a_panicking_clock_does_not_affect_waiting_requests() {
    with_timeout(|| {
        let clock = Arc::new(Failing { fails: AtomicBool::new(true), waits: std::sync::Barrier::new(2) });
        let store = MemoryStore::new().clock(Arc::clone(&clock));
        let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(10))).store(store).build();
        let ask = |limiter: &Limiter| limiter.acquire(KEY, 1).now().remaining()[0];
        let failing = std::thread::spawn({
            let limiter = limiter.clone();
            move || ask(&limiter)
        });
        clock.waits.wait();
        assert_eq!(ask(&limiter), 9, "what waited");
        assert!(failing.join().is_err(), "it has not failed");
        assert_eq!(ask(&limiter), 8, "what came later");
    });
}

/// With the real clock, threads may be preempted between reading it and deciding, and then decide at an earlier
/// instant.
#[test]
fn the_real_clock_admits_no_excess() {
    const EACH: u64 = 10_000;
    let period = Duration::from_millis(1);
    let limits = [
        Limit::new("window", FixedWindow::new(5, period)),
        Limit::new("bucket", TokenBucket::new(1, 1, period)),
        Limit::new("log", SlidingLog::new(5, period)),
    ];
    let runtime = runtime();
    for limit in limits {
        let name = limit.name().to_owned();
        let limiter = Limiter::new([limit]);
        let admitted = all_at_once(&runtime, |_| {
            let limiter = limiter.clone();
            async move {
                let mut admitted = Vec::new();
                for _ in 0..EACH {
                    let decision = limiter.acquire(KEY, 1).await.unwrap();
                    if decision.is_allowed() {
                        admitted.push(decision.at().as_micros());
                    }
                }
                admitted
            }
        });
        let mut admitted = admitted.concat();
        admitted.sort_unstable();
        match name.as_str() {
            "window" => {
                assert!(admitted.chunk_by(|one, other| one / 1_000 == other / 1_000).all(|in_one| in_one.len() <= 5))
            }
            "bucket" => assert!(admitted.windows(2).all(|two| two[1] - two[0] >= 1_000)),
            _ => assert!(admitted.windows(6).all(|six| six[5] - six[0] >= 1_000)),
        }
    }
}
