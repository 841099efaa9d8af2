//! Faults that were found: each has a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::faulty_store::{FaultyStore, Mode, Operation};
use support::time::SECOND;
use tokio::runtime::Builder;
use tokio::time::sleep;
use tower_ratelimit::{
    DecidedBy, DecisionRecord, FixedWindow, Limit, Limiter, OnStoreError, Recorder, Share, TokenBucket,
};

use crate::features::{TERM, acquire, builder, warm_up, window};

/// Otherwise, a client that is denied makes its process take all that others could use.
#[tokio::test(start_paused = true)]
async fn what_is_denied_is_no_demand() {
    let store = FaultyStore::new(Mode::Works);
    let limits = || [window(10_000), Limit::new("user", FixedWindow::per_day(10)).leased(TERM)];
    let [one, other] = [builder(limits(), &store).build(), builder(limits(), &store).build()];
    let ask = async |limiter: &Limiter, user: &str, cost| {
        limiter.acquire_charges(&[(&"all", cost), (&user, 1)]).await.expect("a decision")
    };
    for _ in 0..1_000 {
        let _ = ask(&one, "greedy", 1).await;
    }
    assert!(!ask(&one, "bob", u64::MAX).await.is_allowed());
    assert!(ask(&one, "ann", 1).await.is_allowed());
    let left = ask(&other, "bob", 1).await.outcomes()[0].remaining();
    assert!(left > 9_900, "of 10,000 tokens, requests used 12, and {left} are left");
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_failing_store_is_not_leased() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(1_000)], &store).on_store_error(OnStoreError::DecideLocally(Share::whole())).build();
    warm_up(&limiter).await;
    store.set(Mode::Fails);
    sleep(TERM * 3 / 2).await;
    for request in 0..1_000 {
        assert!(acquire(&limiter, 1).await.is_allowed(), "request {request}");
    }
}

/// For the fields of its span.
#[tokio::test(start_paused = true)]
async fn a_recorder_is_called_in_the_task_of_the_request() {
    tokio::task_local! { static REQUEST: (); }
    struct Requests(Arc<AtomicU64>);
    impl Recorder for Requests {
        fn decision(&self, _: &DecisionRecord<'_>) {
            REQUEST.get();
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (store, recorded) = (FaultyStore::new(Mode::Works), Arc::<AtomicU64>::default());
    let limiter = builder([window(1_000)], &store).recorder(Requests(recorded.clone())).build();
    for _ in 0..50 {
        let _ = REQUEST.scope((), acquire(&limiter, 1)).await;
    }
    assert_eq!(recorded.load(Ordering::Relaxed), 50);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_a_call_brings_after_a_reset_is_dropped() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([window(100)], &store).build();
    for cost in [1, 1, 1, 40] {
        let _ = acquire(&limiter, cost).await;
    }
    sleep(TERM / 2).await;
    store.set_for(Operation::Decide, Mode::Slow(TERM / 10));
    let in_progress = limiter.acquire("key", 20);
    limiter.limit("window").unwrap().reset("key").await.expect("a reset");
    let _ = in_progress.await.expect("a decision");
    let mut allowed = 0;
    for _ in 0..300 {
        allowed += u64::from(acquire(&limiter, 1).await.is_allowed());
    }
    assert!(allowed <= 100, "{allowed} of 100 were allowed after a reset");
}

/// With a term of a minute, a pause takes a second, and so a term has 60 blocks.
#[tokio::test(start_paused = true)]
async fn a_key_is_leased_however_many_blocks_it_had_in_a_term() {
    let store = FaultyStore::new(Mode::Slow(Duration::from_millis(1)));
    let limit = Limit::new("bucket", TokenBucket::per_second(100).burst(10_000)).leased(60 * SECOND);
    let limiter = builder([limit], &store).build();
    for second in 0..40 {
        let before = store.asked(Operation::Decide);
        for _ in 0..400 {
            let _ = acquire(&limiter, 1).await;
            sleep(Duration::from_micros(1_500)).await;
        }
        let calls = store.asked(Operation::Decide) - before;
        assert!(second < 5 || calls < 20, "{calls} calls");
    }
}

/// Programs that start a runtime for each job.
#[test]
fn runtimes_that_end_with_their_leases_do_not_end_leasing() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = builder([Limit::new("window", FixedWindow::per_day(1_000_000)).leased(TERM / 10)], &store).build();
    for job in 0..40 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let by_lease = runtime.block_on(async {
            let mut by_lease = 0;
            for _ in 0..20 {
                by_lease += u64::from(acquire(&limiter, 1).await.decided_by() == DecidedBy::Lease);
            }
            by_lease
        });
        drop(runtime);
        std::thread::sleep(TERM);
        assert!(by_lease > 0, "job {job}");
    }
}
