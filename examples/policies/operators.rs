//! 100 searches a day, and routes by which operators find out why a user is denied, and raise the limit for a day.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead, Store, TraceRecorder, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/search -H 'x-user: ann'
curl -i http://HOST/admin/users/ann
curl -i -X PUT http://HOST/admin/users/ann
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-user")).overridable();
    // Logs the first denial of each key in a minute, if the program has a `tracing` subscriber.
    let limits = RateLimitLayer::builder([daily]).store(store).recorder(TraceRecorder::new()).build();
    Router::new()
        .route("/search", get("found\n"))
        .route_layer(limits.clone())
        // Put this route behind the authentication of operators.
        .route("/admin/users/{user}", get(explain).put(raise))
        .with_state(limits)
}

/// Returns what a request of the user would get now, and the fingerprint by which the log names the user.
async fn explain(State(limits): State<RateLimitLayer>, Path(user): Path<String>) -> Result<String, StatusCode> {
    // As it arrives at the layer: with all headers and extensions that keys and conditions read.
    let request = Request::get("/search").header("x-user", user).body(());
    let request = request.map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok(format!("{}\n", limits.explain(&RequestHead::of(&request)).await))
}

/// Raises the limit of the user for a day, in all processes that share the store.
async fn raise(state: State<RateLimitLayer>, user: Path<String>) -> Result<String, StatusCode> {
    let (daily, day) = (state.limit("daily").expect("the limit"), Duration::from_secs(86_400));
    let raised = daily.set_override(user.as_str(), FixedWindow::per_day(1_000), Some(day)).await;
    raised.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    explain(state, user).await
}
