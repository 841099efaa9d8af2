//! The contract of a database with compare-and-swap.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::trace::new_key;
use crate::store::{CompareAndSwap, Versioned};
use crate::time::{Clock, SystemClock, Timestamp};

/// The TTL of values that do not expire during a check.
const TTL: Duration = Duration::from_secs(600);

/// The TTL of a value that expires during a check.
const SHORT_TTL: Duration = Duration::from_secs(3);

/// One key of a database, and the TTL of the values that it is set to. Fails the check if the database fails.
struct FreshKey<B> {
    database: Arc<B>,
    name: String,
    ttl: Duration,
}

impl<B: CompareAndSwap> FreshKey<B> {
    fn new(database: &Arc<B>) -> Self {
        Self { database: database.clone(), name: format!("conformance:{:016x}", new_key()), ttl: TTL }
    }

    async fn get(&self) -> Option<Versioned> {
        self.database.get(&self.name).await.expect("`get` succeeds")
    }

    /// Reads the value as requests do.
    async fn get_by_get_all(&self) -> Option<Versioned> {
        let found = self.database.get_all(slice::from_ref(&self.name)).await.expect("`get_all` succeeds");
        found.into_iter().next().expect("`get_all` returns a value for each key")
    }

    async fn swap(&self, expected: Option<u64>, value: &[u8]) -> bool {
        let swapped = self.database.compare_and_swap(&self.name, expected, value, self.ttl).await;
        swapped.expect("`compare_and_swap` succeeds")
    }

    async fn delete(&self) {
        self.database.delete(&self.name).await.expect("`delete` succeeds");
    }

    /// Returns the version, after a check that the value is `expected`.
    async fn version_of(&self, expected: &[u8]) -> u64 {
        let found = self.get().await.expect("`get` returns a value that was set");
        assert_eq!(found.value, expected, "`get` returns the bytes that were set");
        found.version
    }

    /// Sets the value of a key that has none, and returns its version.
    async fn create(&self, value: &[u8]) -> u64 {
        assert!(self.swap(None, value).await, "a key without a value is set if none is expected");
        self.version_of(value).await
    }

    /// Replaces the value of that version, and returns the new version.
    async fn replace(&self, version: u64, value: &[u8]) -> u64 {
        assert!(self.swap(Some(version), value).await, "a value is replaced if its version is the expected one");
        self.version_of(value).await
    }
}

/// Checks the clock of the database, and returns its time.
pub(super) async fn check_clock<B: CompareAndSwap>(database: &Arc<B>) -> Timestamp {
    let mut latest = Timestamp::EPOCH;
    for _ in 0..100 {
        let now = database.now().await.expect("`now` succeeds");
        let here = SystemClock::new().now();
        // 10 minutes, in µs. Other units and time zones differ by more.
        assert!(
            now.as_micros().abs_diff(here.as_micros()) < 600_000_000,
            "`now` is the time in µs since 1970: {now:?}, but {here:?} on this machine"
        );
        assert!(now >= latest, "`now` does not go back: {now:?} after {latest:?}");
        latest = now;
    }
    latest
}

/// Checks that values are replaced only if their version is the expected one, and that no version is used twice.
pub(super) async fn check_versions<B: CompareAndSwap>(database: &Arc<B>) {
    let key = FreshKey::new(database);
    assert_eq!(key.get().await, None, "`get` returns `None` for a key that was never set");
    assert!(!key.swap(Some(1), b"stale").await, "a key without a value has no version to compare with");

    let mut versions = HashSet::new();
    for _ in 0..3 {
        let first = key.create(b"first").await;
        assert!(versions.insert(first), "a value that is set again after its removal has another version");
        assert!(!key.swap(None, b"stale").await, "a key with a value is not set if none is expected");
        assert_eq!(key.version_of(b"first").await, first, "a failed swap changes nothing");

        let second = key.replace(first, b"second").await;
        assert!(versions.insert(second), "a value that is replaced has another version");
        assert!(!key.swap(Some(first), b"stale").await, "a value is not replaced if its version has changed");
        assert_eq!(key.version_of(b"second").await, second, "a failed swap changes nothing");

        key.delete().await;
        assert_eq!(key.get().await, None, "`get` returns `None` after `delete`");
        assert!(!key.swap(Some(second), b"stale").await, "a key without a value has no version to compare with");
    }
}

/// Checks that values are opaque, and that several are read in order.
pub(super) async fn check_values<B: CompareAndSwap>(database: &Arc<B>) {
    let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
    let values = [all_bytes.clone(), vec![0], b"END\r\n".to_vec(), all_bytes.repeat(128)];
    let keys: Vec<_> = values.iter().map(|_| FreshKey::new(database)).collect();
    for (key, value) in keys.iter().zip(&values) {
        key.create(value).await;
    }
    keys[1].delete().await;

    let names: Vec<String> = keys.iter().map(|key| key.name.clone()).collect();
    let found = database.get_all(&names).await.expect("`get_all` succeeds");
    let found: Vec<_> = found.into_iter().map(|found| found.map(|found| found.value)).collect();
    let mut expected = values.map(Some);
    expected[1] = None;
    assert_eq!(found, expected, "`get_all` returns a value for each key, in order");
}

/// Checks that one of several concurrent writes with the same expected version succeeds.
pub(super) async fn check_races<B: CompareAndSwap>(database: &Arc<B>) {
    const TASKS: u8 = 8;
    let key = Arc::new(FreshKey::new(database));
    for round in 0..32 {
        if round % 2 == 1 {
            // The next writes are the first ones.
            key.delete().await;
        }
        let expected = key.get().await.map(|found| found.version);
        let swap = |task| {
            let key = key.clone();
            async move { key.swap(expected, &[task]).await.then_some(task) }
        };
        let swapped = (0..TASKS).map(swap).collect::<JoinSet<_>>().join_all().await;
        let winners: Vec<u8> = swapped.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "swaps that succeeded of {TASKS} with the same expected version");
        key.version_of(&winners).await;
    }
}

/// Checks that a value is read with its own version: otherwise, tasks that read, append a byte and swap lose bytes.
pub(super) async fn check_appends<B: CompareAndSwap>(database: &Arc<B>) {
    const TASKS: usize = 8;
    const APPENDS: usize = 32;
    let key = Arc::new(FreshKey::new(database));
    key.create(b"0").await;
    let append = |task| {
        let key = key.clone();
        async move {
            let mut appended = 0;
            while appended < APPENDS {
                let found = if task % 2 == 0 { key.get_by_get_all().await } else { key.get().await };
                let Versioned { mut value, version } = found.expect("a value that was set is read");
                value.push(b'1');
                if key.swap(Some(version), &value).await {
                    appended += 1;
                    continue;
                }
                // Tasks in step would read at the same time, and none while another one writes.
                for _ in 0..task {
                    yield_now().await;
                }
            }
        }
    };
    (0..TASKS).map(append).collect::<JoinSet<_>>().join_all().await;
    assert_eq!(
        key.get().await.map(|found| found.value.len()),
        Some(1 + TASKS * APPENDS),
        "`get` and `get_all` read a value with its own version, so that no byte is lost"
    );
}

/// Checks that a value is kept for its TTL, and then counts as none.
pub(super) async fn check_expiry<B: CompareAndSwap>(database: &Arc<B>) {
    let [key, mut extended] = [(); 2].map(|()| FreshKey { ttl: SHORT_TTL, ..FreshKey::new(database) });
    key.create(b"first").await;
    let version = extended.create(b"first").await;
    extended.ttl = TTL;
    extended.replace(version, b"longer").await;
    // The clock of the database may be coarse.
    sleep(SHORT_TTL / 2).await;
    let first = key.version_of(b"first").await;
    let expires = async {
        while key.get().await.is_some() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let has_expired = timeout(Duration::from_secs(60), expires).await.is_ok();
    assert!(has_expired, "`get` returns `None` for a value that has expired");
    let is_kept = extended.get().await.is_some_and(|found| found.value == b"longer");
    assert!(is_kept, "a value that is replaced is kept for the new TTL");
    assert_eq!(key.get_by_get_all().await, None, "`get_all` returns `None` for a value that has expired");
    assert!(key.swap(None, b"second").await, "a key whose value has expired is set if none is expected");
    let second = key.version_of(b"second").await;
    assert_ne!(first, second, "a value that is set again after its expiry has another version");
}
