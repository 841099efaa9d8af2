//! trypema's hybrid provider, which counts in the process and synchronizes with Redis every 10 ms.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::{RedisKey, RedisKeyRef};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::app::App;
use crate::keys;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, PATIENCE, Peer, Shared, Why};

pub struct Trypema;

struct Limiter {
    provider: Arc<HybridRateLimiterProvider>,
    rate: RateLimit,
}

impl Peer for Trypema {
    fn name(&self) -> &'static str {
        "trypema 2.2.1, hybrid"
    }

    fn memory(&self, _: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Err("measured on Redis")
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
            let window = WindowSize::seconds(quota.window().as_secs()).expect("a window");
            let provider = HybridRateLimiterProvider::builder(connection).window_size(window).build();
            let rate = RateLimit::per_second(f64::from(quota.burst) / quota.window().as_secs_f64()).expect("a rate");
            Ok(Box::new(Limiter { provider: provider.expect("a limiter"), rate }) as Box<dyn Shared>)
        })
    }
}

impl Shared for Limiter {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        let (limiter, name) = (self.provider.absolute(), keys::name(key as u32));
        Box::pin(async move {
            let key = RedisKeyRef::try_from(name.as_str()).expect("a key");
            let decision = match limiter.try_inc(key, 1).expect("it decides") {
                Some(decision) => decision,
                None => {
                    let key = RedisKey::try_from(name).expect("a key");
                    limiter.inc(&key, &self.rate, 1).await.expect("it decides")
                }
            };
            matches!(decision, RateLimitDecision::Allowed)
        })
    }
}
