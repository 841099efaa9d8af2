//! $200 a day, refilled by $50: who has spent it all gets $50 back each day, until it is $200 again.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tower_ratelimit::{Limit, Permit, RateLimitLayer, Store, TokenBucket, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/purchases -H 'x-user: ann' -H 'content-type: application/json' -d '{\"cents\": 12000}'
curl -i http://HOST/purchases -H 'x-user: ann' -H 'content-type: application/json' -d '{\"cents\": 9000}'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // In cents. The $50 come back all at once, a day after the first purchase, and so on day by day until
    // the bucket is full; without `at_intervals` they come back evenly, a cent every 17.28 seconds.
    let bucket = TokenBucket::per_day(5_000).burst(20_000).at_intervals();
    let spending = Limit::new("spending", bucket).by(key::header("x-user"));
    // The request itself is free: the handler charges the price that is in the body.
    let limits = RateLimitLayer::builder([spending]).store(store).permits().cost(0).build();
    Router::new().route("/purchases", post(buy).route_layer(limits))
}

#[derive(Deserialize)]
struct Purchase {
    cents: u64,
}

async fn buy(permit: Permit, Json(purchase): Json<Purchase>) -> Response {
    match permit.charge(purchase.cents).await {
        Ok(decision) if decision.is_allowed() => "bought\n".into_response(),
        Ok(decision) => match decision.retry_after() {
            Some(wait) => {
                let seconds = wait.as_secs_f64().ceil().to_string();
                let text = "that is over your limit\n";
                (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)], text).into_response()
            }
            None => (StatusCode::FORBIDDEN, "you may never spend that at once\n").into_response(),
        },
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
