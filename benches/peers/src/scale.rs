//! How much is measured.

use std::time::Duration;

pub struct Scale {
    /// Whether it is a smoke test: the figures are there, and mean little.
    pub quick: bool,
    /// Rounds of a few milliseconds.
    pub rounds: usize,
    /// Rounds of a span.
    pub long_rounds: u32,
    /// What such a round takes: so little that a change of the machine's pace hits all alike.
    pub span: Duration,
    /// Many keys, and very many.
    pub keys: [u32; 2],
    /// Trials of how many are admitted.
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
