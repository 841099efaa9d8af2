//! Five failed card payments a day from each device. Only those that fail count.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tower_ratelimit::{Limit, RateLimitLayer, SlidingLog, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/payments -H 'x-device: d1' -H 'content-type: application/json' -d '{\"card\": \"4242\"}'
curl -i http://HOST/payments -H 'x-device: d1' -H 'content-type: application/json' -d '{\"card\": \"0000\"}'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // The gateway in front has verified the device: one that a client may name as it likes stops nobody.
    let failures = Limit::new("failed-payments", SlidingLog::per_day(5))
        .by(key::header("x-device"))
        .count_if(|response| response.status == StatusCode::PAYMENT_REQUIRED);
    let limits = RateLimitLayer::builder([failures]).store(store).build();
    Router::new().route("/payments", post(pay).route_layer(limits))
}

#[derive(Deserialize)]
struct Payment {
    card: String,
}

async fn pay(Json(payment): Json<Payment>) -> (StatusCode, &'static str) {
    match payment.card.as_str() {
        "4242" => (StatusCode::OK, "paid\n"),
        _ => (StatusCode::PAYMENT_REQUIRED, "the card was declined\n"),
    }
}
