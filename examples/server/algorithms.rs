//! A route for each algorithm. A request chooses the parameters; requests with the same parameters share a layer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Query, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use serde_json::json;
use tower::ServiceExt;
use tower_ratelimit::{Algorithm, Permit, RateLimitLayer, Reason, Rejection};

use crate::explain::explain;
use crate::limits::{Backend, layer, limit};
use crate::page::accepts;
use crate::settings::{Settings, SettingsError};

type QueryParameters = Query<HashMap<String, String>>;

/// The maximum number of layers that are kept. State lives in the store, so dropping a layer forgets no request.
const MAX_LAYERS: usize = 128;

/// Returns a route for each algorithm, such as `/token-bucket?capacity=20`, and routes that explain requests to them.
pub(crate) fn routes(backend: &Backend) -> (Router, Router) {
    let layers = Layers { backend: backend.clone(), layers: Arc::default() };
    Settings::ALGORITHMS.iter().fold((Router::new(), Router::new()), |(routes, explanations), (name, _)| {
        let (path, decide, explain) = (format!("/{name}"), layers.clone(), layers.clone());
        let routes = routes.route(&path, any(move |query, request| decide.handle(name, query, request)));
        let explanations = explanations.route(&path, any(move |query, request| explain.explain(name, query, request)));
        (routes, explanations)
    })
}

/// The layers of the parameters that were requested so far.
#[derive(Clone)]
struct Layers {
    backend: Backend,
    layers: Arc<Mutex<HashMap<Algorithm, RateLimitLayer>>>,
}

/// The cost of a request, which its layer reads.
#[derive(Clone, Copy)]
struct Cost(u64);

impl Layers {
    async fn handle(self, name: &'static str, query: QueryParameters, mut request: Request) -> Response {
        match self.prepare(name, query, &mut request) {
            Ok(layer) => {
                let route = get(describe).delete(forget).route_layer(layer);
                route.oneshot(request).await.into_response()
            }
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        }
    }

    async fn explain(self, name: &'static str, query: QueryParameters, mut request: Request) -> Response {
        match self.prepare(name, query, &mut request) {
            Ok(layer) => explain(layer, request).await,
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        }
    }

    /// Adds its cost to a request. Returns the layer that limits it.
    fn prepare(
        &self,
        name: &str,
        Query(query): QueryParameters,
        request: &mut Request,
    ) -> Result<RateLimitLayer, SettingsError> {
        let settings = Settings::parse(name, query)?;
        let cost = if request.method() == Method::DELETE { 0 } else { settings.cost };
        request.extensions_mut().insert(Cost(cost));
        Ok(self.layer(name, settings.algorithm))
    }

    fn layer(&self, name: &str, algorithm: Algorithm) -> RateLimitLayer {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        if layers.len() >= MAX_LAYERS && !layers.contains_key(&algorithm) {
            layers.clear();
        }
        let layer = layers.entry(algorithm).or_insert_with(|| {
            layer(&self.backend, vec![limit(name, algorithm)])
                .cost_by(|head| head.extensions.get().map_or(1, |Cost(cost)| *cost))
                .permits()
                .on_reject(reject)
                .build()
        });
        layer.clone()
    }
}

/// Describes the decision that let the request pass.
async fn describe(permit: Permit) -> impl IntoResponse {
    let decision = permit.decision();
    let outcome = decision.outcomes().first();
    let body = json!({
        // Since the Unix epoch, to the microsecond.
        "at_seconds": decision.at().as_micros() as f64 / 1e6,
        "delay_seconds": decision.delay().as_secs_f64(),
        "cost": outcome.map(|outcome| outcome.cost()),
        "remaining": outcome.map(|outcome| outcome.remaining()),
        "more_after_seconds": outcome.and_then(|outcome| outcome.more_after()).map(|wait| wait.as_secs_f64()),
        "reset_after_seconds": outcome.map(|outcome| outcome.reset_after().as_secs_f64()),
    });
    // Terminals prefer a line.
    ([(CONTENT_TYPE, "application/json")], format!("{body}\n"))
}

/// Describes a denial to the page, which wants it exactly, and to people.
fn reject(rejection: &Rejection<'_>) -> Response {
    let is_page = accepts(rejection.head.headers, "application/json");
    let (Reason::Limited { retry_after }, true) = (rejection.reason, is_page) else {
        return (rejection.status(), rejection.message()).into_response();
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let body = json!({
        "at_seconds": now.as_micros() as f64 / 1e6,
        "retry_after_seconds": retry_after.map(|wait| wait.as_secs_f64()),
        "remaining": rejection.denied_by().next().map(|limit| limit.outcome.remaining()),
    });
    (rejection.status(), Json(body)).into_response()
}

/// Forgets the requests of the client.
async fn forget(permit: Permit) -> StatusCode {
    match permit.reset().await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
