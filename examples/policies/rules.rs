//! Such policies from a file, `examples/limits.yaml`: another number needs no other program.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tower_ratelimit::key::{self, TrustedProxies};
use tower_ratelimit::rules::{self, Extractors, RulesError};
use tower_ratelimit::{Limit, RateLimitLayer, Store};

pub(crate) const TRY: &str = "
curl -i -X POST http://HOST/friends -H 'x-user: ann'
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 203.0.113.7'
curl -i http://HOST/reports -H 'x-user: ann' -H 'x-plan: pro'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // What is wrong with a file, it says at once: all of it, with lines and what to do.
    let limits = limits().unwrap_or_else(|error| panic!("{error}"));
    Router::new()
        .route("/posts", post("posted\n"))
        .route("/friends", post("you are friends now\n"))
        .route("/accounts", post("created\n"))
        .route("/reports", get("a report\n"))
        .route_layer(RateLimitLayer::builder(limits).store(store).build())
}

fn limits() -> Result<Vec<Limit>, RulesError> {
    let address = TrustedProxies::cidrs(["127.0.0.1"]).x_forwarded_for();
    // The gateway in front has found these headers out, and lets no client write them.
    let extractors = Extractors::new()
        .register_address("remote_address", address, 64)
        .register("user", key::header("x-user"))
        .register("plan", key::header("x-plan"));
    rules::from_file("examples/limits.yaml", &extractors)
}
