//! How much is measured.

use std::time::Duration;

pub struct Scale {
    /// Whether this is a smoke test, whose figures mean little.
    pub quick: bool,
    /// The number of rounds of a few milliseconds.
    pub rounds: usize,
    /// The number of timed rounds.
    pub long_rounds: u32,
    /// How long a timed round takes: short, so that a change of the machine's speed affects all alike.
    pub span: Duration,
    /// The numbers of keys of a large and of a very large load.
    pub keys: [u32; 2],
    /// The number of trials of concurrent admission.
    pub trials: usize,
}

impl Scale {
    pub const FULL: Self = Self {
        quick: false,
        rounds: 101,
        long_rounds: 31,
        span: Duration::from_millis(50),
        keys: [1_000_000, 10_000_000],
        trials: 100,
    };

    pub const QUICK: Self = Self {
        quick: true,
        rounds: 5,
        long_rounds: 1,
        span: Duration::from_millis(50),
        keys: [100_000, 400_000],
        trials: 5,
    };
}
