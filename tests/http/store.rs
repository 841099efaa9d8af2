//! Stores whose clock stands still.

use tower_ratelimit::{ManualClock, MemoryStore, Timestamp};

/// Midnight of 1 January 2026. All windows up to a day start here.
pub(crate) const MIDNIGHT: u64 = 1_767_225_600;

/// Returns a clock that stands at [`MIDNIGHT`].
pub(crate) fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(MIDNIGHT * 1_000_000))
}

/// Returns a store whose clock stands at [`MIDNIGHT`].
pub(crate) fn paused_store() -> MemoryStore {
    MemoryStore::new().clock(midnight())
}
