//! Stores in memory and on Redis, with the same tests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tower::{Layer, service_fn};
use tower_ratelimit::{
    Builder, Clock, HttpOptions, Limit, Limiter, ManualClock, MemoryStore, RateLimitLayer, RedisConfig, RedisStore,
    Store, Timestamp, key,
};

use crate::answer::{Answer, ask};
use crate::patient::Patient;
use crate::redis_server::RedisServer;
use crate::time::MIDNIGHT;

/// A store whose clock stands at midnight.
pub struct StoreFixture {
    pub store: Arc<dyn Store>,
    pub clock: ManualClock,
    /// Whether the store is ready at once.
    pub is_memory: bool,
    pub server: Option<RedisServer>,
}

impl StoreFixture {
    pub fn in_memory() -> Self {
        let clock = midnight();
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        Self { store, clock, is_memory: true, server: None }
    }

    pub async fn on_redis() -> Self {
        let (server, clock) = (RedisServer::start(), midnight());
        let store = connect(&server).await.clock(clock.clone());
        Self { store: Arc::new(store), clock, is_memory: false, server: Some(server) }
    }

    /// Returns a builder of a layer with these limits and no short deadline.
    pub fn builder(&self, limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
        RateLimitLayer::builder(limits).store(self.store.clone()).patient()
    }

    /// Returns a builder of a limiter with these limits and no short deadline.
    pub fn limiter_builder(&self, limits: impl IntoIterator<Item = Limit>) -> Builder {
        Limiter::builder(limits).store(self.store.clone()).patient()
    }

    /// Returns a limiter with these limits and no short deadline.
    pub fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Limiter {
        self.limiter_builder(limits).build()
    }

    /// Returns the instant of the clock in µs.
    pub fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Sets the clock to an instant in µs.
    pub fn set(&self, micros: u64) {
        self.clock.set(Timestamp::from_micros(micros));
    }

    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Returns the remaining tokens of a user under a limit by [`user_key`], once the store responds.
    pub async fn remaining(&self, limit: &Limit, user: &str) -> i64 {
        let only = Limit::new(limit.name(), *limit.algorithm()).by(user_key());
        let peek = self.builder([only]).cost_by(|_| 0).build();
        let hello = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
        let peek = peek.layer(hello);
        for _ in 0..2_000 {
            let answer = ask(&peek, get("/", user)).await;
            if answer.status != StatusCode::SERVICE_UNAVAILABLE {
                return answer.remaining_of(limit.name());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the store does not respond");
    }

    /// Waits until `expected` tokens remain. In memory, refunds are complete when this is called. On Redis, they run in
    /// the background.
    pub async fn wait_for_remaining(&self, limit: &Limit, user: &str, expected: i64) {
        for _ in 0..2_000 {
            if self.remaining(limit, user).await == expected {
                return;
            }
            assert!(!self.is_memory, "in memory, {} tokens remain, not {expected}", self.remaining(limit, user).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} tokens of {} remain, not {expected}", self.remaining(limit, user).await, limit.name());
    }
}

/// Returns a clock that stands at midnight.
pub fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(MIDNIGHT))
}

/// Connects a store without short deadlines.
pub async fn connect(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.expect("a connection")
}

/// Returns a key by the header `x-user`.
pub fn user_key() -> impl key::KeyExtractor {
    key::header("x-user")
}

pub fn get(path: &str, user: &str) -> Request<Body> {
    Request::get(path).header("x-user", user).body(Body::empty()).expect("a valid request")
}

pub async fn visit(app: &Router, path: &str, user: &str) -> Answer {
    ask(app, get(path, user)).await
}

/// Runs each test in memory and on Redis.
#[macro_export]
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::store_fixture::StoreFixture::in_memory()).await;
            })*
        }

        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::store_fixture::StoreFixture::on_redis().await).await;
            })*
        }
    };
}
pub use crate::on_both_stores;
