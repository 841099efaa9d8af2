//! Soft, elastic and shadow limits, and other sizes for some requests. The same tests run on every store.
#![allow(clippy::unwrap_used)]

mod elastic;
mod shadow;
mod sizes;
mod soft;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use support::answer::{Answer, ask};
use support::event_log::EventLog;
use support::store_fixture::StoreFixture;
use tower_ratelimit::{Builder, HeaderStyle, HttpOptions, Limit};

/// Returns a builder of a layer, and its events.
fn layer(fixture: &StoreFixture, limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, EventLog) {
    let events = EventLog::default();
    let layer = fixture.builder(limits).headers([HeaderStyle::IETF, HeaderStyle::Overage]);
    (layer.observe(events.observer()), events)
}

fn app(builder: Builder<HttpOptions>) -> Router {
    let layer = builder.build();
    let expensive = get(async || "expensive").route_layer(layer.cost(3));
    Router::new().route("/", get(async || "cheap")).route("/expensive", expensive).layer(layer)
}

async fn send(app: &Router, path: &str, plan: &str) -> Answer {
    ask(app, Request::get(path).header("x-plan", plan).body(Body::empty()).unwrap()).await
}

async fn status(app: &Router, path: &str) -> u16 {
    send(app, path, "").await.status.as_u16()
}

/// Returns the status of a request by a plan, and the remaining tokens of a limit.
async fn left(app: &Router, path: &str, plan: &str, limit: &str) -> (u16, i64) {
    let answer = send(app, path, plan).await;
    (answer.status.as_u16(), answer.remaining_of(limit))
}
