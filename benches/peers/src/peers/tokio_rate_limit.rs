//! tokio-rate-limit, keyed by the peer's address. Its slowest rate is one token per second.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tokio_rate_limit::RateLimiter;
use tokio_rate_limit::middleware::RateLimitLayer;

use crate::app::App;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, Peer, Why};

pub struct TokioRateLimit;

impl Peer for TokioRateLimit {
    fn name(&self) -> &'static str {
        "tokio-rate-limit 0.10.0"
    }

    fn memory(&self, quota: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Ok(Box::new(its(quota)))
    }

    fn headers(&self) -> Headers {
        Headers::Always
    }

    fn app(&self, quota: Quota, _: bool) -> Result<App, Why> {
        Ok(App::Axum(App::hello().layer(RateLimitLayer::new(Arc::new(its(quota))))))
    }
}

impl Memory for RateLimiter {
    fn decide(&self, key: &String) -> bool {
        black_box(self.check(key)).permitted
    }
}

fn its(quota: Quota) -> RateLimiter {
    let rate = quota.per(Duration::from_secs(1)).max(1);
    RateLimiter::builder().requests_per_second(rate.into()).burst(quota.burst.into()).build().expect("it is valid")
}
