//! throttled, which has no layer.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use throttled::{LimitResult, MemoryStore, RateLimiter, RedisRateLimiter, StoreLimiter};

use crate::app::App;
use crate::keys;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, PATIENCE, Peer, Shared, Why};

pub struct Throttled;

struct Limiter<L> {
    limiter: L,
    quota: throttled::Quota,
}

impl Peer for Throttled {
    fn name(&self) -> &'static str {
        "throttled 0.1.0"
    }

    fn memory(&self, quota: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        let limiter = StoreLimiter::new(MemoryStore::<String>::new());
        Ok(Box::new(Limiter { limiter, quota: its(quota) }))
    }

    fn headers(&self) -> Headers {
        Headers::Never
    }

    fn app(&self, _: Quota, _: bool) -> Result<App, Why> {
        Err("no layer")
    }

    fn redis<'a>(&'a self, quota: Quota, url: &'a str) -> BoxFuture<'a, Result<Box<dyn Shared>, Why>> {
        Box::pin(async move {
            let client = redis::Client::open(url).expect("a client");
            let config = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
            let connection = ConnectionManager::new_with_config(client, config).await.expect("a connection");
            let limiter = RedisRateLimiter::new(connection);
            Ok(Box::new(Limiter { limiter, quota: its(quota) }) as Box<dyn Shared>)
        })
    }
}

impl Memory for Limiter<StoreLimiter<MemoryStore<String>>> {
    fn decide(&self, key: &String) -> bool {
        let result: LimitResult =
            self.limiter.check(key.clone(), self.quota).now_or_never().expect("at once").expect("it decides");
        black_box(result).is_allowed()
    }
}

impl Shared for Limiter<RedisRateLimiter> {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            self.limiter.check(keys::name(key as u32), self.quota).await.expect("it decides").is_allowed()
        })
    }
}

fn its(quota: Quota) -> throttled::Quota {
    // Of a longer period, the lowest rate that it has.
    let rate = NonZeroU32::new(quota.per(Duration::from_secs(3_600))).unwrap_or(NonZeroU32::MIN);
    throttled::Quota::per_hour(rate).with_burst(NonZeroU32::new(quota.burst).expect("not 0"))
}
