//! Handlers that use a `Limiter`.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get as route;
use http::{Method, StatusCode};
use tower_ratelimit::{AcquireError, Limiter, StoreError};

use crate::service::{get, per_day};
use crate::store::paused_store;
use support::answer::ask;
use support::faulty_store::{FaultyStore, Mode};

async fn send(
    State(mails): State<Limiter>,
    Path((to, mails_sent)): Path<(String, u64)>,
) -> Result<String, AcquireError> {
    let decision = mails.try_acquire(&to, mails_sent).await?;
    Ok(format!("{} left", decision.outcomes()[0].remaining()))
}

/// Errors of stores convert, too.
async fn left(State(mails): State<Limiter>, Path(to): Path<String>) -> Result<String, AcquireError> {
    Ok(mails.peek(&to, 0).await?.outcomes()[0].remaining().to_string())
}

async fn forget(State(mails): State<Limiter>, Path(to): Path<String>) -> Result<(), StoreError> {
    mails.reset(&to).await
}

fn app(store: impl tower_ratelimit::Store) -> Router {
    let mails = Limiter::builder(per_day("secret-plan", 2)).store(store).build();
    Router::new().route("/{to}/{mails}", route(send)).route("/{to}", route(left).delete(forget)).with_state(mails)
}

fn request(path: &str) -> http::Request<axum::body::Body> {
    get(path).map(|()| axum::body::Body::empty())
}

#[tokio::test]
async fn a_denial_is_the_response_of_a_layer() {
    let app = app(paused_store());
    let allowed = ask(&app, request("/ann/2")).await;
    assert_eq!((allowed.status, allowed.body.as_str()), (StatusCode::OK, "0 left"));
    let denied = ask(&app, request("/ann/1")).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("86400"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(denied.body, "Too many requests: try again in 1 day.\n");
    assert_eq!(ask(&app, request("/bob/1")).await.status, 200);
}

#[tokio::test]
async fn a_cost_over_the_capacity_is_denied_without_a_time_to_retry() {
    let denied = ask(&app(paused_store()), request("/ann/3")).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
    assert_eq!(denied.body, "Too much for one request: it costs more than its limit allows.\n");
}

#[tokio::test]
async fn a_failed_store_is_503_without_its_cause() {
    let app = app(FaultyStore::new(Mode::Fails));
    let mut forget = request("/ann");
    *forget.method_mut() = Method::DELETE;
    for request in [request("/ann/1"), request("/ann"), forget] {
        let sent = format!("{} {}", request.method(), request.uri());
        let failed = ask(&app, request).await;
        assert_eq!(failed.status, 503, "{sent}");
        assert_eq!(failed.header("retry-after"), Some("1"));
        assert_eq!(failed.body, "Temporarily unavailable: try again in a moment.\n");
    }
}
