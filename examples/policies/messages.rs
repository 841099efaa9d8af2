//! One message a day with risky words. Others are free.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tower_ratelimit::{FixedWindow, Limit, Permit, RateLimitLayer, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/messages -H 'x-user: ann' -d 'how are you?'
curl -i http://HOST/messages -H 'x-user: ann' -d 'send me a gift card'
curl -i http://HOST/messages -H 'x-user: ann' -d 'tell me your password'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let risky = Limit::new("risky-messages", FixedWindow::per_day(1)).by(key::header("x-user"));
    // A limiter never reads bodies. To come here is free, and the handler charges what is risky.
    let limits = RateLimitLayer::builder([risky]).store(store).permits().cost(0).build();
    Router::new().route("/messages", post(send).route_layer(limits))
}

async fn send(permit: Permit, message: String) -> Response {
    if !is_risky(&message) {
        return "sent\n".into_response();
    }
    match permit.charge(1).await {
        Ok(decision) if decision.is_allowed() => "sent\n".into_response(),
        Ok(decision) => {
            let seconds = decision.retry_after().map_or(0.0, |wait| wait.as_secs_f64().ceil()).to_string();
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)], "no more of these today\n").into_response()
        }
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

fn is_risky(message: &str) -> bool {
    let message = message.to_lowercase();
    ["gift card", "wire transfer", "password"].iter().any(|words| message.contains(words))
}
