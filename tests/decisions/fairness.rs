//! Tasks whose decisions are always ready, and the other tasks of their runtime.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use tower_ratelimit::store::StoreFuture;
use tower_ratelimit::{Decision, FixedWindow, Limit, Limiter};

/// The number of decisions of a task that never yields.
const MANY: u32 = 10_000;

fn limiter(limit: u32) -> Limiter {
    Limiter::new(Limit::new("limit", FixedWindow::per_day(limit)))
}

/// Returns the number of decisions that a task awaits before another task of the same thread runs.
async fn awaited_in_a_row(ask: impl Fn() -> StoreFuture<Decision> + Send + 'static) -> u32 {
    let had_a_turn = Arc::new(AtomicBool::new(false));
    let seen = had_a_turn.clone();
    let looping = tokio::spawn(async move {
        let mut awaited = 0;
        while awaited < MANY && !seen.load(Ordering::Relaxed) {
            let _ = ask().await.unwrap();
            awaited += 1;
        }
        awaited
    });
    tokio::spawn(async move { had_a_turn.store(true, Ordering::Relaxed) });
    looping.await.unwrap()
}

#[tokio::test]
async fn a_task_that_is_denied_in_a_loop_yields_to_others() {
    let limiter = limiter(1);
    let _ = limiter.acquire("key", 1).await.unwrap();
    let awaited = awaited_in_a_row(move || limiter.acquire("key", 1)).await;
    assert!((2..1_000).contains(&awaited), "{awaited} denials in a row");
}

#[tokio::test]
async fn a_task_that_is_allowed_in_a_loop_yields_to_others() {
    let limiter = limiter(1_000_000);
    let awaited = awaited_in_a_row(move || limiter.acquire("key", 1)).await;
    assert!((2..1_000).contains(&awaited), "{awaited} decisions in a row");
}

#[tokio::test]
async fn reading_a_ready_answer_does_not_yield() {
    let limiter = limiter(1);
    let looping = async {
        for _ in 0..MANY {
            assert!(limiter.acquire("key", 1).as_ready().is_some());
            assert!(limiter.acquire("key", 1).into_ready().is_ok());
        }
        tokio::task::coop::has_budget_remaining()
    };
    assert!(looping.await);
}

#[test]
fn outside_a_runtime_decisions_are_ready_at_the_first_poll() {
    let limiter = limiter(1);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MANY {
        assert!(pin!(limiter.acquire("key", 1)).poll(&mut context).is_ready());
    }
}
