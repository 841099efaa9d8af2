//! The store and the runtime of a policy, with clocks that stand still.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tower_ratelimit::key::Key;
use tower_ratelimit::{Algorithm, Limit, Limiter, Store};

use support::answer::Answer;
use support::server::Server;
use support::store_fixture::StoreFixture;

/// A store whose clock stands at midnight UTC, and a runtime whose time is paused, so that the deadline of a program
/// does not pass on a loaded machine.
pub(crate) struct Site {
    pub(crate) fixture: StoreFixture,
    _stands_still: mpsc::Sender<()>,
}

/// The served program of a policy.
pub(crate) struct Served(Server);

impl Site {
    pub(crate) fn in_memory() -> Self {
        Self { _stands_still: pause_clock(), fixture: StoreFixture::in_memory() }
    }

    pub(crate) async fn on_redis() -> Self {
        Self { _stands_still: pause_clock(), fixture: StoreFixture::on_redis().await }
    }

    pub(crate) async fn serve(&self, app: fn(Arc<dyn Store>) -> Router) -> Served {
        self.serve_app(app(self.fixture.store.clone())).await
    }

    pub(crate) async fn serve_app(&self, app: Router) -> Served {
        Served(Server::axum(app).await)
    }

    pub(crate) fn later(&self, seconds: u64) {
        self.fixture.clock.advance(Duration::from_secs(seconds));
    }

    /// Waits until `key` has this many tokens under a limit of this name and algorithm. On Redis, refunds are sent in
    /// the background.
    pub(crate) async fn comes_back(
        &self,
        name: &str,
        algorithm: impl Into<Algorithm>,
        key: impl Key + Copy,
        left: u64,
    ) {
        let limiter = Limiter::builder([Limit::new(name, algorithm)]).store(self.fixture.store.clone()).build();
        let mut seen = None;
        for _ in 0..4_000 {
            let decision = limiter.peek(key, 1).await.expect("a decision");
            seen = Some(decision.outcomes()[0].remaining());
            if seen == Some(left) {
                return;
            }
            tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(5))).await.expect("it sleeps");
        }
        panic!("{seen:?} are left of {name}, not {left}");
    }
}

impl Served {
    /// Returns the response to a request line such as `"POST /path"` with these headers.
    pub(crate) async fn ask(&self, request: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(request, headers, "").await
    }

    pub(crate) async fn send(&self, request: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let builder = Request::builder().method(method).uri(self.0.uri(path));
        let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        self.0.send(builder.body(Full::new(Bytes::from(body.to_owned()))).expect("a request")).await
    }

    pub(crate) async fn send_json(&self, request: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send(request, &[headers, &[("content-type", "application/json")]].concat(), body).await
    }

    /// Returns the number of allowed requests. They must be the first of `requests`, and the others must get 429.
    pub(crate) async fn count_allowed(&self, requests: usize, request: &str, headers: &[(&str, &str)]) -> usize {
        let mut statuses = Vec::new();
        for _ in 0..requests {
            statuses.push(self.ask(request, headers).await.status);
        }
        let count_allowed = statuses.iter().take_while(|status| status.is_success()).count();
        assert!(
            statuses[count_allowed..].iter().all(|status| *status == StatusCode::TOO_MANY_REQUESTS),
            "{statuses:?}"
        );
        count_allowed
    }
}

/// Tokio's paused clock advances when the runtime is idle, unless a blocking task runs.
fn pause_clock() -> mpsc::Sender<()> {
    let (end, ended) = mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || ended.recv());
    end
}

/// Runs each test in memory and on Redis.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(crate::policies::site::Site::in_memory()).await;
            })*
        }

        mod on_redis {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(crate::policies::site::Site::on_redis().await).await;
            })*
        }
    };
}
pub(crate) use on_both;
