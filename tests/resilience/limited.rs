//! Services and limiters on a faulty store.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Builder, CircuitBreaker, DecidedBy, Event, FixedWindow, Limit, Limiter, OnStoreError, RateLimit, Share,
    StoreErrorKind,
};

use support::faulty_store::FaultyStore;

pub(crate) const LOCALLY: OnStoreError = OnStoreError::DecideLocally(Share::whole());

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a limit of ten per day.
pub(crate) fn ten() -> Limit {
    Limit::new("ten", FixedWindow::per_day(10))
}

pub(crate) fn limiter(store: &FaultyStore) -> Builder {
    Limiter::builder([ten()]).store(store.clone())
}

/// Returns a limiter without a circuit breaker, which calls a failing store for each request.
pub(crate) fn without_breaker(store: &FaultyStore) -> Builder {
    limiter(store).circuit_breaker(CircuitBreaker::off())
}

pub(crate) type Hello = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

pub(crate) fn hello() -> Hello {
    BoxCloneSyncService::new(service_fn(async |_: Request<()>| Ok(Response::new("hello".to_owned()))))
}

/// A response, and its time.
#[derive(Debug)]
pub(crate) struct EventLog {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) after: Duration,
}

impl EventLog {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("it is ASCII"))
    }
}

pub(crate) async fn ask<S, R>(service: &S, request: Request<()>) -> EventLog
where
    S: Service<Request<()>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Error: Debug>,
{
    let start = Instant::now();
    let response = service.clone().oneshot(request).await.expect("the service answers");
    let after = start.elapsed();
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the body arrives").to_bytes();
    EventLog { status: head.status, headers: head.headers, body: String::from_utf8_lossy(&body).into_owned(), after }
}

pub(crate) async fn visit(layer: &impl Layer<Hello, Service = RateLimit<Hello>>) -> EventLog {
    ask(&layer.layer(hello()), Request::new(())).await
}

pub(crate) fn with(headers: &[(&str, &str)]) -> Request<()> {
    let request = headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(*name, *value));
    request.body(()).expect("it is a request")
}

/// Returns the part of the limiter that decided one request, or the reason why none did, and the time.
pub(crate) async fn acquire(limiter: &Limiter) -> (Result<DecidedBy, StoreErrorKind>, Duration) {
    let start = Instant::now();
    let decision = limiter.acquire("key", 1).await;
    (decision.map(|decision| decision.decided_by()).map_err(|error| error.kind()), start.elapsed())
}

/// Returns all events so far, as text.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    pub(crate) fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let Self(events) = self.clone();
        move |event| {
            let text = match event {
                Event::StoreFailed { error, .. } => format!("failed: {:?}", error.kind()),
                Event::FellBack { to, .. } => format!("{to:?}"),
                Event::BreakerChanged { state, .. } => format!("breaker: {state:?}"),
                other => panic!("what is {other:?}?"),
            };
            events.lock().expect("no thread has panicked").push(text);
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().expect("no thread has panicked").clone()
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        self.all().iter().filter(|event| event.starts_with(prefix)).count()
    }
}

/// Sends a request in this interval until the store decides, and returns the time that this took.
pub(crate) async fn recovers(limiter: &Limiter, every: Duration) -> Duration {
    let start = Instant::now();
    loop {
        let (decided, _) = acquire(limiter).await;
        if decided == Ok(DecidedBy::Store) {
            return start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not recover");
        tokio::time::sleep(every).await;
    }
}
