//! Clients of services that limit them: the retry policy, and the layer that paces calls.

mod learning;
mod pace;
mod retry;
mod server;

use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Clock, HeaderStyle, Limit, MemoryStore, RateLimitLayer, Timestamp};

/// A clock that follows Tokio's, so that paused time moves it.
#[derive(Debug)]
struct TokioClock {
    start: Timestamp,
    created: Instant,
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.start.saturating_add(self.created.elapsed())
    }
}

/// A request that arrived at a server, and its answer.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Instant,
    status: u16,
    /// `Retry-After` in seconds.
    wait: Option<u64>,
}

type Answers = BoxCloneSyncService<Request<String>, Response<()>, Infallible>;

/// A server in this process, with a latency of 10 ms each way, and its log. Clones share both.
#[derive(Clone)]
struct Upstream {
    answers: Answers,
    log: Arc<Mutex<Vec<Arrival>>>,
}

impl Upstream {
    /// Creates a server that answers by a closure.
    fn new(answer: impl Fn(Request<String>) -> Response<()> + Clone + Send + Sync + 'static) -> Self {
        let answers = service_fn(move |request| ready(Ok(answer(request))));
        Self { answers: BoxCloneSyncService::new(answers), log: Arc::default() }
    }

    /// Creates a server that limits all requests together. Its clock shows `start` now.
    fn limited(limit: Limit, headers: Vec<HeaderStyle>, start: u64) -> Self {
        let clock = TokioClock { start: Timestamp::from_micros(start), created: Instant::now() };
        let store = MemoryStore::new().clock(clock);
        let layer = RateLimitLayer::builder([limit]).store(store).headers(headers).build();
        let answers = layer.layer(service_fn(async |_| Ok(Response::new(String::new()))));
        let answers = answers.map_response(|response| response.map(drop));
        Self { answers: BoxCloneSyncService::new(answers), log: Arc::default() }
    }

    fn client(&self) -> Answers {
        let upstream = self.clone();
        BoxCloneSyncService::new(service_fn(move |request| {
            let Upstream { answers, log } = upstream.clone();
            async move {
                sleep(LATENCY).await;
                let at = Instant::now();
                let response = answers.oneshot(request).await?;
                let wait = response.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
                log.lock().unwrap().push(Arrival { at, status: response.status().as_u16(), wait });
                sleep(LATENCY).await;
                Ok(response)
            }
        }))
    }

    fn log(&self) -> Vec<Arrival> {
        self.log.lock().unwrap().clone()
    }
}

const LATENCY: Duration = Duration::from_millis(10);

fn get(uri: &str) -> Request<String> {
    Request::get(uri).body(String::new()).unwrap()
}

fn status(status: u16, headers: &[(&str, &str)]) -> Response<()> {
    let response = Response::builder().status(status);
    let response = headers.iter().fold(response, |response, (name, value)| response.header(*name, *value));
    response.body(()).unwrap()
}
