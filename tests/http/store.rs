//! Stores with a clock that stands still.

use tower_ratelimit::{ManualClock, MemoryStore, Timestamp};

/// Midnight of the first of January 2026: all windows up to a day start here.
pub(crate) const MIDNIGHT: u64 = 1_767_225_600;

/// A clock that stands at [`MIDNIGHT`].
pub(crate) fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(MIDNIGHT * 1_000_000))
}

/// A store whose clock stands at [`MIDNIGHT`].
pub(crate) fn still() -> MemoryStore {
    MemoryStore::new().clock(midnight())
}
