//! Five failed logins an hour from each address. A good one does not count, and forgets those that failed.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tower_ratelimit::{Limit, Permit, RateLimitLayer, SlidingLog, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/login -H 'content-type: application/json' -d '{\"password\": \"guess\"}'
curl -i http://HOST/login -H 'content-type: application/json' -d '{\"password\": \"open sesame\"}'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let failures = Limit::new("failed-logins", SlidingLog::per_hour(5))
        .by(key::peer_ip())
        .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let limits = RateLimitLayer::builder([failures]).store(store).permits().build();
    Router::new().route("/login", post(login).route_layer(limits))
}

#[derive(Deserialize)]
struct Login {
    password: String,
}

async fn login(permit: Permit, Json(login): Json<Login>) -> (StatusCode, &'static str) {
    if login.password != "open sesame" {
        return (StatusCode::UNAUTHORIZED, "no\n");
    }
    // If the store can't, the login is as good: the failures count on.
    let _ = permit.reset().await;
    (StatusCode::OK, "welcome\n")
}
