//! axum_gcra, keyed by the peer's address, on Axum 0.7, the newest version that it supports.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use axum_gcra::RateLimitLayer;
use axum_gcra::gcra::{self, RateLimiter};
use axum_gcra::real_ip::RealIp;

use crate::app::App;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, Peer, Why};

pub struct AxumGcra;

struct Keyed {
    limiter: RateLimiter<String, ahash::RandomState>,
    quota: gcra::Quota,
}

impl Peer for AxumGcra {
    fn name(&self) -> &'static str {
        "axum_gcra 0.1.1"
    }

    fn memory(&self, quota: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        // Of its two ways to clean up, the one that blocks no request.
        let limiter = RateLimiter::new(u64::MAX, ahash::RandomState::default());
        Ok(Box::new(Keyed { limiter, quota: its(quota) }))
    }

    fn headers(&self) -> Headers {
        Headers::Never
    }

    fn app(&self, quota: Quota, _: bool) -> Result<App, Why> {
        let layer = RateLimitLayer::<RealIp>::builder()
            .with_default_quota(its(quota))
            .with_gc_interval(Duration::from_secs(60))
            .default_handle_error();
        let hello = axum_0_7::Router::new().route("/", axum_0_7::routing::get(|| async { "hello" }));
        Ok(App::Axum07(hello.route_layer(layer)))
    }
}

impl Memory for Keyed {
    fn decide(&self, key: &String) -> bool {
        // It only reports how long to wait.
        std::hint::black_box(self.limiter.req_sync(key.clone(), self.quota, Instant::now())).is_ok()
    }
}

fn its(quota: Quota) -> gcra::Quota {
    gcra::Quota::new(quota.period, NonZeroU64::new(quota.burst.into()).expect("not 0"))
}
