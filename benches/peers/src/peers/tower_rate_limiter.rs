//! tower-rate-limiter with its default fixed windows and with GCRA, keyed by the peer's address.

use std::hint::black_box;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tower_rate_limiter::{
    FixedWindow, GcraQuota, IpKeyExtractor, MemoryGcra, MemoryStore, RateLimitFields, RateLimitLayer, RateLimitPolicy,
    RedisGcra, RedisStore,
};

use crate::app::App;
use crate::keys;
use crate::quota::Quota;
use crate::redis::connect;
use crate::subject::{Headers, Memory, Peer, Shared, Why};

pub struct TowerRateLimiter {
    pub gcra: bool,
}

impl Peer for TowerRateLimiter {
    fn name(&self) -> &'static str {
        if self.gcra { "tower-rate-limiter 0.2.0-alpha.0, GCRA" } else { "tower-rate-limiter 0.2.0-alpha.0, window" }
    }

    fn memory(&self, quota: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Ok(if self.gcra { Box::new(Policy(gcra(quota))) } else { Box::new(Policy(window(quota, MemoryStore::new()))) })
    }

    fn headers(&self) -> Headers {
        Headers::AsConfigured
    }

    fn app(&self, quota: Quota, headers: bool) -> Result<App, Why> {
        let fields = if headers { RateLimitFields::Draft11 } else { RateLimitFields::Disabled };
        let builder = RateLimitLayer::builder(IpKeyExtractor::new()).policy_name("limit").rate_limit_fields(fields);
        Ok(App::Axum(if self.gcra {
            App::hello().layer(builder.with_policy(gcra(quota)).build().expect("it is valid"))
        } else {
            App::hello().layer(builder.with_policy(window(quota, MemoryStore::new())).build().expect("it is valid"))
        }))
    }

    fn redis<'a>(&'a self, quota: Quota, url: &'a str) -> BoxFuture<'a, Result<Box<dyn Shared>, Why>> {
        Box::pin(async move {
            let connection = connect(url).await;
            let policy: Box<dyn Shared> = if self.gcra {
                Box::new(Policy(RedisGcra::new(connection, its(quota))))
            } else {
                Box::new(Policy(window(quota, RedisStore::new(connection))))
            };
            Ok(policy)
        })
    }
}

struct Policy<P>(P);

impl<P: RateLimitPolicy + Send + Sync> Memory for Policy<P> {
    fn decide(&self, key: &String) -> bool {
        let decision = self.0.check(key.clone()).now_or_never().expect("at once").expect("it decides");
        black_box((decision.remaining(), decision.reset_after(), decision.retry_after()));
        !black_box(decision.is_rate_limited())
    }
}

impl<P: RateLimitPolicy<Future: Send> + Send + Sync> Shared for Policy<P> {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        let check = self.0.check(keys::name(key as u32));
        Box::pin(async { !check.await.expect("it decides").is_rate_limited() })
    }
}

fn window<S>(quota: Quota, store: S) -> FixedWindow<S> {
    FixedWindow::new(store, quota.burst.into(), quota.window()).expect("it is valid")
}

fn gcra(quota: Quota) -> MemoryGcra {
    MemoryGcra::new(its(quota))
}

fn its(quota: Quota) -> GcraQuota {
    GcraQuota::new(1, quota.period, quota.burst).expect("it is valid")
}
