//! 20 accounts a day from each address, behind a proxy.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tower_ratelimit::key::TrustedProxies;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Store};

pub(crate) const TRY: &str = "
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 203.0.113.7'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // The proxy runs on this machine, and adds to the header, on the right, who has connected to it. What a
    // client writes is further left, and never read.
    let address = TrustedProxies::cidrs(["127.0.0.1"]).x_forwarded_for();
    let accounts = Limit::new("accounts", FixedWindow::per_day(20)).by(address);
    let limits = RateLimitLayer::builder([accounts]).store(store).build();
    Router::new().route("/accounts", post((StatusCode::CREATED, "created\n")).route_layer(limits))
}
