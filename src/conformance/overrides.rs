//! Compares overrides on the checked store and on a memory store.

use std::time::Duration;

use super::random::new_key;
use super::trace::{Pair, START};
use crate::algorithm::{FixedWindow, TokenBucket};
use crate::error::StoreErrorKind;
use crate::limit::Limit;
use crate::limiter::OverrideError;
use crate::store::Store;
use crate::time::{ManualClock, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

pub(super) async fn compare<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let window = |limit| FixedWindow::new(limit, DAY);
    let limits =
        vec![Limit::new("overridable", window(5)).overridable(), Limit::new("beside", TokenBucket::new(50, 1, DAY))];
    let mut pair = Pair::new(new_store, limits).await;
    let [expected, actual] =
        [&pair.expected, &pair.actual].map(|limiter| limiter.limit("overridable").expect("the limit is overridable"));
    let (key, other) = (new_key(), new_key());
    let _ = pair.acquire(key, 3).await;

    match actual.set_override(key, window(20), None).await {
        Err(OverrideError::Store(error)) if error.kind() == StoreErrorKind::NotSupported => return,
        result => result.expect("an override is set"),
    }
    expected.set_override(key, window(20), None).await.expect("an override is set in memory");
    pair.note("override 20");
    let _ = pair.acquire(key, 10).await;
    let _ = pair.acquire(key, 8).await;
    let _ = pair.acquire(other, 6).await;
    assert_eq!(
        actual.get_override(key).await.expect("`get` succeeds").map(|found| found.algorithm),
        Some(window(20).into())
    );
    assert_eq!(actual.get_override(other).await.expect("`get` succeeds"), None);

    for overrides in [&expected, &actual] {
        overrides.set_override(key, window(2), Some(Duration::from_secs(60))).await.expect("an override is set");
    }
    pair.note("override 2 for a minute");
    pair.peek(key, 1).await;
    let found = actual.get_override(key).await.expect("`get` succeeds").expect("an override");
    assert_eq!(found.expires_after, Some(Duration::from_secs(60)));
    for seconds in [60, 61] {
        pair.clock.set(Timestamp::from_micros(START + seconds * 1_000_000));
        pair.note(&format!("{seconds} seconds later"));
        assert_eq!(actual.get_override(key).await.expect("`get` succeeds"), None, "an override has expired");
    }
    let _ = pair.acquire(key, 1).await;

    for overrides in [&expected, &actual] {
        overrides.set_override(key, window(100), None).await.expect("an override is set");
        overrides.remove_override(key).await.expect("an override is removed");
    }
    pair.note("override removed");
    pair.peek(key, 1).await;
    assert_eq!(actual.get_override(key).await.expect("`get` succeeds"), None, "an override was removed");
}
