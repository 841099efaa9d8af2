//! The quotas that every subject enforces.

use std::time::Duration;

/// A burst, and the period in which one more request is allowed.
#[derive(Clone, Copy)]
pub struct Quota {
    pub burst: u32,
    pub period: Duration,
}

impl Quota {
    /// Allows every request for one key among many. It does not refill completely during a run, so that no subject
    /// forgets a key, and refills within a year, as tower-rate-limiter requires.
    pub const PLENTY: Self = Self { burst: 250_000, period: Duration::from_secs(120) };

    /// The same for a single key.
    pub const HOT: Self = Self { burst: 3_000_000, period: Duration::from_secs(10) };

    /// Allows one request, and denies for two hours. In the first minute, our message says "2 hours", so that the count
    /// of its instructions does not depend on how fast the machine is: from an hour, it would soon be "59 minutes 59
    /// seconds".
    pub const ONE: Self = Self { burst: 1, period: Duration::from_secs(7_200) };

    /// Returns the period in which it refills completely: the period of a fixed window.
    pub fn window(&self) -> Duration {
        self.period * self.burst
    }

    /// Returns how many of its periods fit into a longer one.
    pub fn per(&self, longer: Duration) -> u32 {
        u32::try_from(longer.as_nanos() / self.period.as_nanos()).expect("few")
    }
}
