//! A gateway to a language model, which limits the requests, streams and tokens of each API key:
//! `cargo run --example gateway --features gateway`. Open http://127.0.0.1:3000, and send
//! `curl -N http://127.0.0.1:3000/completions -H 'authorization: Bearer ann'
//! -d '{"prompt": "Once upon a time"}'`. With `REDIS_URL`, gateways share their limits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower_ratelimit::{Limit, RateLimitLayer, StoreError, TokenBucket, key};
use tower_ratelimit::{MemoryStore, RedisStore, Store};

/// The API keys of the customers.
const KEYS: [&str; 2] = ["ann", "bob"];

/// The API key of an authenticated request.
#[derive(Clone)]
struct ApiKey(&'static str);

#[derive(Clone, Deserialize)]
struct Prompt {
    prompt: String,
    max_tokens: Option<u64>,
}

type SseEvent = Result<Event, Infallible>;

/// The tokens of a typical answer, and of the longest one.
const TYPICAL: u64 = 50;
const LONGEST: u64 = 200;

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let api_key = key::extension(|key: &ApiKey| key.0.to_owned());
    let limits = RateLimitLayer::builder([
        Limit::new("requests", TokenBucket::per_minute(60).burst(10)).by(api_key.clone()),
        Limit::concurrent("streams", 2).by(api_key.clone()),
        // Reserves an estimate, and charges the words that were sent, even if that leaves a debt.
        Limit::new("tokens", TokenBucket::per_minute(400))
            .by(api_key)
            .cost_by(|head| {
                let asked = head.extensions.get::<Prompt>().and_then(|prompt| prompt.max_tokens);
                asked.unwrap_or(TYPICAL).min(LONGEST)
            })
            .settle_at_end(|end| Some(end.frames))
            .debt(100),
    ]);
    // An answer takes seconds, so its beginning may wait for Redis.
    let limits = limits.store(store).deadline(Duration::from_secs(1)).build();
    // The last layer is the outermost: it sets what the limits read.
    let completions = post(complete).layer(limits.clone()).layer(from_fn(authenticate));
    Router::new()
        .route("/", get(Html(include_str!("page.html"))))
        .route("/usage", get(usage))
        .route("/completions", completions)
        .with_state(limits)
}

/// Checks the API key and the prompt, before anything is charged.
async fn authenticate(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let authorization = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
    let known = KEYS.into_iter().find(|key| token == Some(key)).ok_or(StatusCode::UNAUTHORIZED)?;
    let body = to_bytes(body, 100_000).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let prompt: Prompt = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    head.extensions.insert(ApiKey(known));
    head.extensions.insert(prompt);
    Ok(next.run(Request::from_parts(head, Body::empty())).await)
}

async fn complete(Extension(prompt): Extension<Prompt>) -> Sse<impl Stream<Item = SseEvent>> {
    Sse::new(ask_the_model(&prompt).map(|word| Ok(Event::default().data(word))))
}

/// Yours writes a story. This one repeats the prompt, a word every 50 ms.
fn ask_the_model(prompt: &Prompt) -> impl Stream<Item = String> + use<> {
    let words: Vec<String> = prompt.prompt.split_whitespace().map(str::to_owned).collect();
    let length = prompt.max_tokens.unwrap_or(LONGEST).min(LONGEST);
    stream::iter(words.into_iter().cycle().take(length as usize)).then(|word| async {
        sleep(Duration::from_millis(50)).await;
        word
    })
}

/// Shows what is left of each limit to each key, and what the key owes.
async fn usage(State(limits): State<RateLimitLayer>) -> Result<Json<Value>, StoreError> {
    let mut usage = json!({});
    for key in KEYS {
        for name in ["requests", "streams", "tokens"] {
            let limit = limits.limit(name).expect("a limit of the layer");
            let decision = limit.peek(key, 0).await?;
            let outcome = &decision.outcomes()[0];
            let (left, size) = (outcome.remaining(), outcome.algorithm().capacity());
            usage[key][name] = json!({ "left": left, "of": size, "debt": outcome.debt() });
        }
    }
    Ok(Json(usage))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store: Arc<dyn Store> = match std::env::var("REDIS_URL") {
        Ok(url) => Arc::new(RedisStore::connect(&url).await?),
        Err(_) => Arc::new(MemoryStore::new()),
    };
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app(store)).await?)
}
