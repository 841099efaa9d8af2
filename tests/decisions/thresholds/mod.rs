//! Soft, elastic and shadow limits, and other sizes for some requests. The same tests run on every store.
#![allow(clippy::unwrap_used)]

mod elastic;
mod shadow;
mod sizes;
mod soft;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use support::patient::Patient;
use support::redis_server::RedisServer;
use tower_ratelimit::{
    Builder, CircuitBreaker, Event, HeaderStyle, HttpOptions, Limit, Limiter, ManualClock, MemoryStore, RateLimitLayer,
    RedisConfig, Store, Timestamp,
};

use support::answer::{Answer, ask};

/// Midnight, so that windows have just begun.
const START: u64 = 1_767_225_600_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// A store with its clock.
struct Backend {
    name: &'static str,
    store: Arc<dyn Store>,
    clock: ManualClock,
}

/// Runs a test in memory and on Redis.
async fn on_each_backend(test: impl AsyncFn(&Backend)) {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START));
    let store = Arc::new(MemoryStore::new().clock(clock.clone()));
    test(&Backend { name: "memory", store, clock }).await;

    let server = RedisServer::start();
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START));
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap().clock(clock.clone());
    test(&Backend { name: "redis", store: Arc::new(store), clock }).await;
}

/// The reported events: `over` or `shadow`, and the limit.
type EventLog = Arc<Mutex<Vec<String>>>;

impl Backend {
    fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Builder {
        let builder = Limiter::builder(limits).store(self.store.clone());
        builder.deadline(Duration::from_secs(30)).circuit_breaker(CircuitBreaker::off())
    }

    fn layer(&self, limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, EventLog) {
        let reported = EventLog::default();
        let noted = reported.clone();
        let layer = RateLimitLayer::builder(limits)
            .store(self.store.clone())
            .deadline(Duration::from_secs(30))
            .headers([HeaderStyle::IETF, HeaderStyle::Overage])
            .observe(move |event| {
                let what = match event {
                    Event::OverageUsed { limit, outcome, .. } => format!("over {limit} {}", outcome.remaining()),
                    Event::ShadowDenied { limit, .. } => format!("shadow {limit}"),
                    _ => return,
                };
                noted.lock().unwrap().push(what);
            });
        (layer, reported)
    }

    fn advance(&self, span: Duration) {
        self.clock.set(Timestamp::from_micros(self.clock_micros() + span.as_micros() as u64));
    }

    fn clock_micros(&self) -> u64 {
        tower_ratelimit::Clock::now(&self.clock).as_micros()
    }
}

fn app(builder: Builder<HttpOptions>) -> Router {
    let layer = builder.build();
    let expensive = get(async || "expensive").route_layer(layer.cost(3));
    Router::new().route("/", get(async || "cheap")).route("/expensive", expensive).layer(layer)
}

async fn send(app: &Router, path: &str, plan: &str) -> Answer {
    ask(app, Request::get(path).header("x-plan", plan).body(Body::empty()).unwrap()).await
}
