//! This crate.

use std::hint::black_box;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tower_ratelimit::{CycleClock, Limit, Limiter, MemoryStore, RateLimitLayer, RedisStore, TokenBucket, key};

use crate::app::App;
use crate::keys;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, OURS, PATIENCE, Peer, Shared, Why};

/// How the layer is used in Axum where speed matters, and otherwise.
pub enum Ours {
    Usual,
    ByCycles,
    /// The layer wraps bodies, which is necessary if they cannot be made of bytes.
    WrappingBodies,
    /// Limits on Redis are leased for 100 ms.
    Leased,
}

impl Ours {
    /// Has room for twice as many keys as are used, because some shards fill up before others.
    fn store(&self, keys: u32) -> MemoryStore {
        let store = MemoryStore::new().max_keys(2 * (keys as usize).max(500_000));
        match self {
            Self::ByCycles => store.clock(CycleClock::new()),
            Self::Usual | Self::WrappingBodies | Self::Leased => store,
        }
    }
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        match self {
            Self::Usual => OURS,
            Self::ByCycles => "tower-ratelimit, CycleClock",
            Self::WrappingBodies => "tower-ratelimit, without keep_body",
            Self::Leased => "tower-ratelimit, leased",
        }
    }

    fn memory(&self, quota: Quota, keys: u32) -> Result<Box<dyn Memory>, Why> {
        match self {
            Self::WrappingBodies => Err("a layer's matter"),
            Self::Leased => Err("nothing to lease"),
            _ => Ok(Box::new(Limiter::builder([Limit::new("limit", bucket(quota))]).store(self.store(keys)).build())),
        }
    }

    fn headers(&self) -> Headers {
        Headers::AsConfigured
    }

    fn app(&self, quota: Quota, headers: bool) -> Result<App, Why> {
        if matches!(self, Self::Leased) {
            return Err("nothing to lease");
        }
        let layer = RateLimitLayer::builder([Limit::new("limit", bucket(quota)).by(key::peer_ip())]);
        let layer = layer.store(self.store(1_000));
        let layer = if headers { layer } else { layer.headers([]) }.build();
        Ok(App::Axum(match self {
            Self::WrappingBodies => App::hello().layer(layer),
            _ => App::hello().layer(layer.keep_body()),
        }))
    }

    fn redis<'a>(&'a self, quota: Quota, url: &'a str) -> BoxFuture<'a, Result<Box<dyn Shared>, Why>> {
        Box::pin(async move {
            let limit = Limit::new("limit", bucket(quota));
            let limit = match self {
                Self::Usual => limit,
                // A bucket of one token has none to lease.
                Self::Leased if quota.burst > 1 => limit.leased(Duration::from_millis(100)),
                _ => return Err("the same on Redis"),
            };
            let store = RedisStore::connect(url).await.expect("a connection").secret(*b"0123456789abcdef");
            Ok(Box::new(shared([limit], store)) as Box<dyn Shared>)
        })
    }
}

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(quota.burst, 1, quota.period)
}

/// This crate on Redis.
pub fn shared(limits: impl IntoIterator<Item = Limit>, store: RedisStore) -> Limiter {
    Limiter::builder(limits).deadline(PATIENCE).store(store).build()
}

impl Memory for Limiter {
    fn decide(&self, key: &String) -> bool {
        let answer = self.acquire(key.as_str(), 1);
        let decision = answer.as_ready().expect("at once").expect("it decides");
        black_box(decision.retry_after());
        for outcome in decision.outcomes() {
            black_box((outcome.remaining(), outcome.more_after(), outcome.reset_after()));
        }
        black_box(decision.is_allowed())
    }
}

impl Shared for Limiter {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        let answer = self.acquire(keys::name(key as u32), 1);
        Box::pin(async { answer.await.expect("a decision").is_allowed() })
    }
}
