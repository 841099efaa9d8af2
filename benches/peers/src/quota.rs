//! What everyone is asked to allow.

use std::time::Duration;

/// So many at once, and one more in each period.
#[derive(Clone, Copy)]
pub struct Quota {
    pub burst: u32,
    pub period: Duration,
}

impl Quota {
    /// Allows all that is asked for here of one key among many, and is not all back before that is over, so that
    /// nobody forgets a key. None of it takes more than a year to come back, as tower-rate-limiter wants it.
    pub const PLENTY: Self = Self { burst: 250_000, period: Duration::from_secs(120) };

    /// The same where there is one key.
    pub const HOT: Self = Self { burst: 3_000_000, period: Duration::from_secs(10) };

    /// Allows one, and denies for an hour.
    pub const ONE: Self = Self { burst: 1, period: Duration::from_secs(3_600) };

    /// The period in which all of it comes back: a fixed window's.
    pub fn window(&self) -> Duration {
        self.period * self.burst
    }

    /// How many of its periods are in a longer one.
    pub fn per(&self, longer: Duration) -> u32 {
        u32::try_from(longer.as_nanos() / self.period.as_nanos()).expect("few")
    }
}
