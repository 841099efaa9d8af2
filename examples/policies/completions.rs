//! 10,000 tokens of a language model a day. 1,000 are reserved, and what was used is paid.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tower_ratelimit::{FixedWindow, Limit, Permit, RateLimitLayer, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/completions -H 'x-user: ann' -d 'Once upon a time'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let tokens = Limit::new("tokens", FixedWindow::per_day(10_000)).by(key::header("x-user"));
    // A request with fewer than 1,000 tokens left is denied before the model is called.
    let limits = RateLimitLayer::builder([tokens]).store(store).permits().cost(1_000).build();
    Router::new().route("/completions", post(complete).route_layer(limits))
}

async fn complete(permit: Permit, prompt: String) -> Result<String, StatusCode> {
    let (text, tokens) = ask_the_model(&prompt).await;
    let settled = permit.settle(tokens).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    if settled.shortfall > 0 {
        eprintln!("{} tokens were over the limit", settled.shortfall);
    }
    Ok(text)
}

/// Yours says what it has used; this one takes a token for each character.
async fn ask_the_model(prompt: &str) -> (String, u64) {
    (format!("{prompt}, they lived happily ever after.\n"), prompt.chars().count() as u64)
}
