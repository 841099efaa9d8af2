//! Leases together with everything else that a limit and a limiter can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use support::faulty_store::{FaultyStore, Mode, Operation};
use support::time::SECOND;
use tokio::time::{Instant, sleep};
use tower_ratelimit::store::Remembering;
use tower_ratelimit::{
    Algorithm, Builder, DecidedBy, Decision, Event, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits,
    MemoryStore, OnStoreError, OutcomeKind, Penalty, SlidingLog, TokenBucket,
};

pub(crate) const TERM: Duration = Duration::from_millis(100);

/// A leased bucket holds 200 tokens, less 10 that it regains in a term.
fn bucket() -> Limit {
    Limit::new("bucket", TokenBucket::per_second(100).burst(200)).leased(TERM)
}

pub(crate) fn window(tokens: u32) -> Limit {
    Limit::new("window", FixedWindow::per_day(tokens)).leased(TERM)
}

pub(crate) fn builder(limits: impl IntoIterator<Item = Limit>, store: &FaultyStore) -> Builder {
    Limiter::builder(limits).store(Remembering::new(store.clone())).deadline(SECOND)
}

pub(crate) async fn acquire(limiter: &Limiter, cost: u64) -> Decision {
    limiter.acquire("key", cost).await.expect("a decision")
}

/// Acquires single tokens until the process has leased some.
pub(crate) async fn warm_up(limiter: &Limiter) {
    for _ in 0..6 {
        let _ = acquire(limiter, 1).await;
    }
}

async fn remaining(limiter: &Limiter) -> u64 {
    limiter.peek("key", 0).await.expect("an answer").outcomes()[0].remaining()
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_is_decided_without_calls_and_the_rest_is_returned() {
    let store = FaultyStore::new(Mode::Works);
    let events = Arc::new([const { AtomicU64::new(0) }; 3]);
    let counts = events.clone();
    let observe = move |event: &Event<'_>| {
        let counts = match event {
            Event::LeaseBegan { limit: "bucket", tokens, .. } => vec![(0, *tokens)],
            Event::LeaseEnded { limit: "bucket", tokens, unspent, returned: true, .. } => {
                vec![(1, *tokens), (2, *unspent)]
            }
            _ => Vec::new(),
        };
        for (which, tokens) in counts {
            events[which].fetch_add(tokens, Ordering::Relaxed);
        }
    };
    let limiter = builder([bucket()], &store).observe(observe).build();
    let mut by_lease = 0;
    for number in 0..100 {
        let decision = acquire(&limiter, 1).await;
        by_lease += u64::from(decision.decided_by() == DecidedBy::Lease);
        let remaining = decision.outcomes()[0].remaining();
        assert_eq!(remaining, 189 - number, "with what is left in blocks");
    }
    let calls = store.asked(Operation::Decide) as u64;
    assert_eq!(calls + by_lease, 100);
    assert!(calls <= 8, "{calls} calls: a block is as large as the demand before it");
    sleep(2 * TERM).await;
    assert_eq!(store.asked(Operation::Refund), 1);
    let [leased, ended, returned] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!((leased - returned, leased), (by_lease, ended));
    assert_eq!(remaining(&limiter).await, 190 - 100 + 20);
}

#[tokio::test(start_paused = true)]
async fn a_cold_key_is_decided_by_one_call_for_each_request() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([bucket()], &store).build();
    for _ in 0..10 {
        assert_eq!(acquire(&limiter, 1).await.decided_by(), DecidedBy::Store);
        sleep(2 * TERM).await;
    }
    assert_eq!((store.asked(Operation::Decide), store.asked(Operation::Refund)), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_the_call_for_a_block() {
    let store = FaultyStore::new(Mode::Slow(TERM / 10));
    let limiter = builder([window(1_000)], &store).build();
    join_all((0..20).map(|_| acquire(&limiter, 1))).await;
    sleep(TERM / 2).await;
    let calls = store.asked(Operation::Decide);
    // What the first call for a block has left, and the next one.
    let by: Vec<_> = join_all((0..20).map(|_| acquire(&limiter, 1))).await.iter().map(Decision::decided_by).collect();
    assert!(store.asked(Operation::Decide) <= calls + 1, "{by:?}");
}

/// Those with the same cost take the denial of the call.
#[tokio::test(start_paused = true)]
async fn a_saturated_key_makes_one_call_per_pause() {
    let store = FaultyStore::new(Mode::Slow(TERM / 10));
    let limiter = builder([bucket()], &store).build();
    for _ in 0..4 {
        join_all((0..60).map(|_| acquire(&limiter, 1))).await;
    }
    let (began, calls) = (Instant::now(), store.asked(Operation::Decide));
    let mut allowed = 0;
    while began.elapsed() < SECOND {
        let decisions = join_all((0..5).map(|_| acquire(&limiter, 1))).await;
        allowed += decisions.iter().filter(|decision| decision.is_allowed()).count();
        if let Some(denied) = decisions.iter().find(|decision| !decision.is_allowed()) {
            assert!(denied.retry_after().expect("a wait") <= TERM / 4 + TERM / 10, "{denied:?}");
        }
        sleep(TERM / 16).await;
    }
    let calls = store.asked(Operation::Decide) - calls;
    assert!(calls <= 42, "{calls} calls in 40 pauses");
    assert!(allowed >= 95, "{allowed} of 100 tokens in a second");
}

#[tokio::test(start_paused = true)]
async fn blocks_are_spent_while_the_store_fails() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).on_store_error(OnStoreError::Allow).build();
    warm_up(&limiter).await;
    store.set(Mode::Fails);
    for _ in 0..20 {
        let _ = limiter.acquire("another key", 1).await;
    }
    let left = acquire(&limiter, 1).await;
    assert_eq!((left.decided_by(), left.outcomes().len()), (DecidedBy::Lease, 1), "the breaker is open");
    sleep(TERM).await;
    assert_eq!(acquire(&limiter, 1).await.decided_by(), DecidedBy::Unlimited);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_returned_to_their_block_or_else_to_the_store() {
    for algorithm in [TokenBucket::per_second(1).burst(1_000).into(), SlidingLog::per_minute(1_000).into()] {
        let algorithm: Algorithm = algorithm;
        let store = FaultyStore::new(Mode::Works);
        let limiter = builder([Limit::new("limit", algorithm).leased(TERM)], &store).build();
        warm_up(&limiter).await;
        let spent = acquire(&limiter, 1).await;
        assert_eq!(spent.decided_by(), DecidedBy::Lease);
        let before = spent.outcomes()[0].remaining();
        limiter.refund(spent.into_receipt()).await.expect("a refund");
        assert_eq!(store.asked(Operation::Refund), 0);
        let again = acquire(&limiter, 1).await;
        assert_eq!((again.decided_by(), again.outcomes()[0].remaining()), (DecidedBy::Lease, before));

        sleep(2 * TERM).await;
        let (refunds, left) = (store.asked(Operation::Refund), remaining(&limiter).await);
        limiter.refund(again.into_receipt()).await.expect("a refund");
        assert_eq!((store.asked(Operation::Refund), remaining(&limiter).await), (refunds + 1, left + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_the_leases_of_this_process() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).build();
    warm_up(&limiter).await;
    limiter.limit("window").unwrap().reset("key").await.expect("a reset");
    let next = acquire(&limiter, 1).await;
    assert_eq!(next.decided_by(), DecidedBy::Store);
    sleep(2 * TERM).await;
    assert_eq!(remaining(&limiter).await, 999, "a block of the time before is not returned");
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_takes_effect_at_once() {
    let store = FaultyStore::new(Mode::Works);
    let limits = LiveLimits::new([window(1_000)]);
    let limiter = Limiter::live_builder(&limits).store(store.clone()).build();
    for _ in 0..100 {
        let _ = acquire(&limiter, 1).await;
    }
    limits.replace([window(50)]).unwrap();
    assert!(!acquire(&limiter, 1).await.is_allowed());
    sleep(2 * TERM).await;
    limits.replace([window(101)]).unwrap();
    assert!(acquire(&limiter, 1).await.is_allowed(), "the block was returned");
    assert!(!acquire(&limiter, 1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn what_counts_more_than_tokens_is_decided_by_calls() {
    let cases = [
        ("a shadow", vec![window(1_000).shadow()]),
        ("a limit without a lease", vec![window(1_000), Limit::new("plain", FixedWindow::per_day(1_000))]),
    ];
    for (name, limits) in cases {
        let store = FaultyStore::new(Mode::Works);
        let limiter = builder(limits, &store).build();
        for _ in 0..10 {
            assert_eq!(acquire(&limiter, 1).await.decided_by(), DecidedBy::Store, "{name}");
        }
        sleep(2 * TERM).await;
        assert_eq!(remaining(&limiter).await, 990, "{name}");
    }
}

/// The flag of a request says whether all regular tokens are gone, wherever they are.
#[tokio::test(start_paused = true)]
async fn no_block_takes_overage() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(100).soft(50)], &store).build();
    let mut kinds = Vec::new();
    for _ in 0..160 {
        kinds.push(acquire(&limiter, 1).await.outcomes()[0].kind());
    }
    let expected = [(OutcomeKind::Allowed, 100), (OutcomeKind::Overage, 50), (OutcomeKind::Denied, 10)];
    assert_eq!(kinds, expected.iter().flat_map(|(kind, count)| vec![*kind; *count]).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_leaves_the_block_to_others() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).build();
    let _ = acquire(&limiter, 1).await;
    assert!(limiter.acquire("key", 1).now_or_never().is_none(), "it waits for the store");
    sleep(TERM / 2).await;
    assert_eq!(acquire(&limiter, 1).await.decided_by(), DecidedBy::Lease);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_call_has_its_deadline() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).deadline(TERM / 2).build();
    for _ in 0..3 {
        let _ = acquire(&limiter, 2).await;
    }
    sleep(TERM).await;
    store.set(Mode::Hangs);
    let began = Instant::now();
    let failed = join_all((0..4).map(|_| limiter.acquire("key", 1))).await;
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    assert!(began.elapsed() < TERM, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_explanation_charges_nothing() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).build();
    warm_up(&limiter).await;
    let before = acquire(&limiter, 1).await.outcomes()[0].remaining();
    let explanation = limiter.explain("key", 1).await.to_string();
    assert!(explanation.contains("decided by the store"), "{explanation}");
    assert_eq!(acquire(&limiter, 1).await.outcomes()[0].remaining(), before - 1);
}

#[tokio::test(start_paused = true)]
async fn in_memory_a_limit_needs_no_leases() {
    let limiter = Limiter::builder([bucket()]).store(MemoryStore::new()).build();
    let decision = acquire(&limiter, 200).await;
    assert!(decision.is_allowed(), "{decision:?}");
    assert_eq!(decision.decided_by(), DecidedBy::Memory);
}

/// Limits hold, and a key with a block keeps it.
#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_evicts_no_block() {
    let store = FaultyStore::over(MemoryStore::new().max_keys(200_000), Mode::Works);
    let limiter = builder([window(10)], &store).build();
    warm_up(&limiter).await;
    for number in 0..40_000_u64 {
        let _ = limiter.acquire(number.to_le_bytes(), 1).await;
    }
    assert_eq!(acquire(&limiter, 1).await.decided_by(), DecidedBy::Lease);
    for number in 0..100_u64 {
        for request in 1..12 {
            let decision = limiter.acquire(number.to_le_bytes(), 1).await.expect("a decision");
            assert_eq!(decision.is_allowed(), request < 10, "request {request} of key {number}");
        }
    }
}

#[test]
fn a_limit_that_cannot_be_leased_says_why() {
    let error = |limit: Limit| Limiter::builder([limit.leased(SECOND)]).try_build().expect_err("a mistake").to_string();
    let small = TokenBucket::per_second(1_000).burst(200);
    let cases = [
        (
            Limit::new("a", small),
            "takes 1000 of a burst of 200 tokens: raise the burst, or shorten the lease to at most 199 ms",
        ),
        (Limit::new("a", LeakyBucketQueue::per_second(1)), "a queue gives each request a turn"),
        (Limit::concurrent("a", 1), "its slots are returned"),
        (window(1).penalty(Penalty::after(1, SECOND)), "it has a penalty"),
        (window(1).overridable(), "it is overridable"),
        (window(1).quota_mode(), "it is in quota mode"),
    ];
    for (limit, because) in cases {
        let error = error(limit);
        assert!(error.contains("can't be leased: ") && error.contains(because), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_fleet_has_not_spent_is_spent_by_others() {
    let store = FaultyStore::new(Mode::Works);
    let fleet: Vec<Limiter> = (0..8).map(|_| builder([window(500)], &store).build()).collect();
    let mut allowed = 0;
    for _ in 0..100 {
        for limiter in &fleet {
            allowed += u64::from(acquire(limiter, 1).await.is_allowed());
        }
        sleep(TERM / 20).await;
    }
    sleep(2 * TERM).await;
    for limiter in &fleet {
        while acquire(limiter, 1).await.is_allowed() {
            allowed += 1;
        }
    }
    assert_eq!(allowed, 500);
}
