//! A route for each algorithm. A request chooses the parameters; requests with the same parameters share a layer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use serde_json::json;
use tower::ServiceExt;
use tower_ratelimit::{Algorithm, Permit};

use crate::limits::{Backend, layer, limit};
use crate::settings::Settings;

/// The maximum number of layers that are kept. State lives in the store, so dropping a layer forgets no request.
const MAX_LAYERS: usize = 128;

/// Returns a route for each algorithm, such as `/token-bucket?capacity=20`.
pub(crate) fn routes(backend: &Backend) -> Router {
    let layers = Layers { backend: backend.clone(), routes: Arc::default() };
    Settings::ALGORITHMS.iter().fold(Router::new(), |app, (name, _)| {
        let layers = layers.clone();
        app.route(&format!("/{name}"), any(move |query, request| layers.handle(name, query, request)))
    })
}

/// The limited routes of the parameters that were requested so far.
#[derive(Clone)]
struct Layers {
    backend: Backend,
    routes: Arc<Mutex<HashMap<Algorithm, MethodRouter>>>,
}

/// The cost of a request, which its layer reads.
#[derive(Clone, Copy)]
struct Cost(u64);

impl Layers {
    async fn handle(
        self,
        name: &'static str,
        Query(query): Query<HashMap<String, String>>,
        mut request: Request,
    ) -> Result<Response, Infallible> {
        let settings = match Settings::parse(name, query) {
            Ok(settings) => settings,
            Err(error) => return Ok((StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()),
        };
        let cost = if request.method() == Method::DELETE { 0 } else { settings.cost };
        request.extensions_mut().insert(Cost(cost));
        self.route(name, settings.algorithm).oneshot(request).await
    }

    /// Returns the route behind a layer with this algorithm.
    fn route(&self, name: &str, algorithm: Algorithm) -> MethodRouter {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= MAX_LAYERS && !routes.contains_key(&algorithm) {
            routes.clear();
        }
        let route = routes.entry(algorithm).or_insert_with(|| {
            let layer = layer(&self.backend, vec![limit(name, algorithm)])
                .cost_by(|head| head.extensions.get().map_or(1, |Cost(cost)| *cost))
                .permits()
                .build();
            get(describe).delete(forget).route_layer(layer)
        });
        route.clone()
    }
}

/// Describes the decision that let the request pass. Times are in microseconds.
async fn describe(permit: Permit) -> impl IntoResponse {
    let decision = permit.decision();
    let outcome = decision.outcomes().first();
    let body = json!({
        "decided_at": decision.at().as_micros(),
        "delay": micros(decision.delay()),
        "cost": outcome.map(|outcome| outcome.cost()),
        "remaining": outcome.map(|outcome| outcome.remaining()),
        "more_after": outcome.and_then(|outcome| outcome.more_after()).map(micros),
        "reset_after": outcome.map(|outcome| micros(outcome.reset_after())),
    });
    // Terminals prefer a line.
    ([(CONTENT_TYPE, "application/json")], format!("{body}\n"))
}

/// Forgets the requests of the client.
async fn forget(permit: Permit) -> StatusCode {
    match permit.reset().await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Converts a span to whole microseconds.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
