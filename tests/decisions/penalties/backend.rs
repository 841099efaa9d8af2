//! A store with its clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::{
    Builder, Clock, Decision, Event, FixedWindow, Limit, Limiter, ManualClock, MemoryStore, Penalty, RedisConfig,
    Store, Timestamp,
};

use support::limits::Patient;
use support::redis_server::RedisServer;

/// Midnight, so that windows have just begun.
pub(crate) const START: u64 = 1_767_225_600_000_000;
pub(crate) const MICRO: Duration = Duration::from_micros(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) struct Backend {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
    _server: Option<RedisServer>,
}

/// Runs a test in memory and on Redis.
pub(crate) async fn on_each_backend(test: impl AsyncFn(&Backend)) {
    test(&Backend::in_memory()).await;
    test(&Backend::on_redis().await).await;
}

/// The reported lockouts: `limit level span`.
pub(crate) type EventLog = Arc<Mutex<Vec<String>>>;

/// Records the reported lockouts.
pub(crate) fn reporter() -> (EventLog, impl Fn(&Event<'_>) + Clone + Send + Sync + 'static) {
    let reported = EventLog::default();
    let noted = reported.clone();
    let report = move |event: &Event<'_>| {
        if let Event::PenaltyBegan { limit, level, span, .. } = event {
            noted.lock().unwrap().push(format!("{limit} {level} {span:?}"));
        }
    };
    (reported, report)
}

impl Backend {
    pub(crate) fn in_memory() -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        Self { name: "memory", store, clock, _server: None }
    }

    pub(crate) async fn on_redis() -> Self {
        let server = RedisServer::start();
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let store = RedisConfig::node(server.url()).patient().connect().await.unwrap().clock(clock.clone());
        Self { name: "redis", store: Arc::new(store), clock, _server: Some(server) }
    }

    pub(crate) fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Builder {
        Limiter::builder(limits).store(self.store.clone()).patient()
    }

    pub(crate) fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    pub(crate) fn set(&self, micros: u64) {
        self.clock.set(Timestamp::from_micros(micros));
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }
}

/// A limit of one token per day, and one key.
pub(crate) struct One<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) limiter: Limiter,
}

impl<'a> One<'a> {
    pub(crate) fn limiter(backend: &Backend, penalty: Penalty) -> Builder {
        backend.limiter([Limit::new("one", FixedWindow::new(1, DAY)).penalty(penalty)])
    }

    /// Creates a limit whose only token is used, so that all requests are denied until the end of the day.
    pub(crate) async fn exhausted(backend: &'a Backend, penalty: Penalty) -> Self {
        let limiter = Self::limiter(backend, penalty).build();
        assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
        Self { backend, limiter }
    }

    pub(crate) async fn ask(&self) -> Decision {
        self.limiter.acquire("key", 1).await.unwrap()
    }

    /// Returns whether the key is locked out, by a peek.
    pub(crate) async fn is_locked_out(&self) -> bool {
        self.limiter.peek("key", 0).await.unwrap().outcomes()[0].is_locked_out()
    }

    /// Checks a denial without a lockout.
    pub(crate) async fn strike(&self) {
        let decision = self.ask().await;
        assert!(!decision.is_allowed() && !decision.is_locked_out(), "{}", self.backend.name);
    }

    /// Checks a denial that begins a lockout of this length.
    pub(crate) async fn begin(&self, span: Duration) {
        let decision = self.ask().await;
        assert!(!decision.is_allowed() && decision.is_locked_out(), "{}", self.backend.name);
        assert!(self.is_locked_out().await, "{}", self.backend.name);
        self.backend.advance(span - MICRO);
        assert!(self.is_locked_out().await, "{}: not for {span:?}", self.backend.name);
        self.backend.advance(MICRO);
        assert!(!self.is_locked_out().await, "{}: for longer than {span:?}", self.backend.name);
    }
}
