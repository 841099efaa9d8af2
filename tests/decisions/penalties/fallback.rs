//! Local penalties while the store fails.

use support::faulty_store::{FaultyStore, Mode};
use tokio::time::advance;
use tower_ratelimit::{FixedWindow, Limit, Limiter, OnStoreError, Penalty, Share};

use support::event_log::EventLog;
use support::time::{DAY, MICRO, MINUTE, SECOND};

#[tokio::test(start_paused = true)]
async fn penalties_are_kept_locally() {
    let events = EventLog::default();
    let limit = Limit::new("one", FixedWindow::new(4, DAY)).penalty(Penalty::after(2, MINUTE).locked_out_for(MINUTE));
    let limiter = Limiter::builder([limit])
        .store(FaultyStore::new(Mode::FailsAtOnce))
        .observe(events.observer())
        .on_store_error(OnStoreError::DecideLocally(Share::one_of(4)))
        .build();
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    assert!(ask().await.is_allowed());
    assert!(!ask().await.is_locked_out());
    let denied = ask().await;
    assert!(denied.is_locked_out(), "{denied:?}");
    let mut lockouts = events.take();
    lockouts.retain(|event| event.starts_with("one "));
    assert_eq!(lockouts, ["one 1 60s"]);
    advance(MINUTE - MICRO).await;
    assert!(ask().await.is_locked_out());
    advance(MICRO + SECOND).await;
    assert!(!ask().await.is_locked_out());
    // The store cannot be reset, but the local state is.
    assert!(limiter.reset("key").await.is_err());
    assert!(ask().await.is_allowed());
}
