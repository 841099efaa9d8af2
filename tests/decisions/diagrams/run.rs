//! A run of one algorithm over the requests of the diagrams.

use std::time::Duration;

use tower_ratelimit::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

/// The instants of the requests in ms: two bursts around the edge of a window, and then a steady rate.
const REQUESTS: [u64; 18] = [
    3_000, 3_200, 3_400, 3_600, 3_800, 4_200, 4_400, 4_600, 4_800, 5_000, 6_500, 7_050, 7_150, 7_450, 8_500, 9_500,
    10_500, 11_500,
];

/// The end of the diagram in ms.
pub(super) const END: u64 = 12_000;

/// The time between two samples of the remaining tokens in ms.
const SAMPLE: u64 = 50;

/// One request.
pub(super) struct Request {
    pub(super) at: u64,
    pub(super) is_allowed: bool,
    pub(super) delay: u64,
}

/// The decisions of an algorithm.
pub(super) struct Run {
    pub(super) requests: Vec<Request>,
    /// The remaining tokens after each instant in ms.
    pub(super) remaining: Vec<(u64, u64)>,
    pub(super) capacity: u64,
}

impl Run {
    pub(super) async fn of(algorithm: Algorithm) -> Self {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let limiter =
            Limiter::builder(Limit::new("limit", algorithm)).store(MemoryStore::new().clock(clock.clone())).build();
        let (mut requests, mut remaining) = (Vec::new(), Vec::new());
        for at in (0..=END).step_by(SAMPLE as usize) {
            if REQUESTS.contains(&at) {
                let decision = limiter.acquire("client", 1).await.unwrap();
                let delay = decision.delay().as_millis() as u64;
                requests.push(Request { at, is_allowed: decision.is_allowed(), delay });
            }
            let peek = limiter.peek("client", 0).await.unwrap();
            remaining.push((at, peek.outcomes()[0].remaining()));
            clock.advance(Duration::from_millis(SAMPLE));
        }
        assert_eq!(requests.len(), REQUESTS.len(), "requests are at samples");
        let capacity = remaining[0].1;
        Self { requests, remaining, capacity }
    }
}
