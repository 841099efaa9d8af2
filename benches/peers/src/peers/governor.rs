//! governor, keyed by text, with and without the middleware that reports the remaining quota.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::{RateLimitingMiddleware, StateInformationMiddleware, StateSnapshot};
use governor::{DefaultKeyedRateLimiter, NotUntil, RateLimiter};

use crate::app::App;
use crate::quota::Quota;
use crate::subject::{BASE, Headers, Memory, Peer, Why};

pub struct Governor {
    pub state: bool,
}

type Instant = <DefaultClock as Clock>::Instant;

struct Keyed<M: RateLimitingMiddleware<Instant>> {
    limiter: DefaultKeyedRateLimiter<String, M>,
    clock: DefaultClock,
    remaining: fn(&M::PositiveOutcome) -> u32,
}

impl Peer for Governor {
    fn name(&self) -> &'static str {
        if self.state { "governor, telling how many remain" } else { BASE }
    }

    fn memory(&self, quota: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        let limiter = RateLimiter::keyed(governors(quota));
        let clock = DefaultClock::default();
        if !self.state {
            return Ok(Box::new(Keyed { limiter, clock, remaining: |()| 0 }));
        }
        let limiter = limiter.with_middleware::<StateInformationMiddleware>();
        Ok(Box::new(Keyed { limiter, clock, remaining: StateSnapshot::remaining_burst_capacity }))
    }

    fn headers(&self) -> Headers {
        Headers::Never
    }

    fn app(&self, _: Quota, _: bool) -> Result<App, Why> {
        Err("no layer")
    }
}

impl<M> Memory for Keyed<M>
where
    M: RateLimitingMiddleware<Instant, NegativeOutcome = NotUntil<Instant>> + Send + Sync,
{
    fn decide(&self, key: &String) -> bool {
        match self.limiter.check_key(key) {
            Ok(allowed) => {
                black_box((self.remaining)(&allowed));
                true
            }
            Err(not_until) => {
                black_box(not_until.wait_time_from(self.clock.now()));
                false
            }
        }
    }
}

pub fn governors(quota: Quota) -> governor::Quota {
    let burst = NonZeroU32::new(quota.burst).expect("not 0");
    governor::Quota::with_period(quota.period).expect("not 0").allow_burst(burst)
}
