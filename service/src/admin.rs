//! Health, metrics and explanations, for operators.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use http::{HeaderValue, Request, StatusCode, header};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Deserialize;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower_ratelimit::key::{PeerAddr, RoutePattern};
use tower_ratelimit::{RequestHead, rules};

use crate::App;
use crate::envoy::check_count;
use crate::forward_auth::normalized;
use crate::json::{Descriptor, JsonEntry};
use crate::shutdown::Shutdown;

/// Installs the exporter of metrics.
///
/// # Errors
///
/// Returns an error if the buckets are invalid, or there is another exporter.
pub(crate) fn install_metrics() -> Result<PrometheusHandle, Box<dyn Error>> {
    let buckets = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25];
    let exporter = PrometheusBuilder::new().set_buckets(&buckets)?.install_recorder()?;
    let upkeep = exporter.clone();
    tokio::spawn(async move {
        // Otherwise, durations would pile up until the next scrape.
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(exporter)
}

pub(crate) async fn metrics(State(app): State<App>, Extension(exporter): Extension<PrometheusHandle>) -> Response {
    app.domains.values().for_each(|domain| domain.metrics.refresh());
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, format)], exporter.render()).into_response()
}

/// The health of this process, as load balancers see it.
#[derive(Clone)]
pub(crate) struct Health {
    /// Whether the store answers, or does not matter.
    store: Arc<AtomicBool>,
    shutdown: Shutdown,
}

impl Health {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { store: Arc::new(AtomicBool::new(true)), shutdown }
    }

    fn is_ready(&self) -> bool {
        self.store.load(Ordering::Relaxed) && !self.shutdown.has_begun()
    }

    /// Reports the health to gRPC clients until the process ends. If it depends on the store, probes the store every
    /// second.
    pub(crate) async fn report(self, app: App, reporter: HealthReporter, needs_store: bool) {
        let mut shutdown = self.shutdown.clone();
        loop {
            // All domains have the same server.
            if let Some(domain) = app.domains.values().next().filter(|_| needs_store) {
                self.store.store(domain.store_answers().await, Ordering::Relaxed);
            }
            let status = if self.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
            for service in ["", SERVICE_NAME] {
                reporter.set_service_status(service, status).await;
            }
            if shutdown.has_begun() {
                return;
            }
            tokio::select! { () = shutdown.begun() => {}, () = tokio::time::sleep(Duration::from_secs(1)) => {} }
        }
    }
}

pub(crate) async fn health(Extension(health): Extension<Health>) -> (StatusCode, &'static str) {
    if health.is_ready() { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

/// The body of `/explain`: a request or descriptors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainCall {
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    method: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: HashMap<String, String>,
    address: Option<IpAddr>,
}

impl ExplainCall {
    fn request(&self) -> Result<Request<()>, http::Error> {
        let path = self.path.as_deref().unwrap_or("/");
        let mut request = Request::builder().method(self.method.as_deref().unwrap_or("GET")).uri(path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut request = request.body(())?;
        let route = RoutePattern(normalized(request.uri().path()));
        request.extensions_mut().insert(route);
        if let Some(address) = self.address {
            request.extensions_mut().insert(PeerAddr((address, 0).into()));
        }
        Ok(request)
    }
}

/// Explains what would happen to a request now, and charges nothing. Answers with text, or with JSON if the client
/// accepts that.
pub(crate) async fn explain(
    State(app): State<App>,
    headers: HeaderMap,
    call: Result<Json<ExplainCall>, JsonRejection>,
) -> Response {
    let call = match call {
        Ok(Json(call)) => call,
        Err(error) => return (error.status(), error.body_text() + "\n").into_response(),
    };
    let Some(domain) = app.domains.get(&call.domain) else {
        return (StatusCode::NOT_FOUND, format!("there are no rules for the domain {:?}\n", call.domain))
            .into_response();
    };
    if let Err(message) = check_count(call.descriptors.len()) {
        return (StatusCode::BAD_REQUEST, message + "\n").into_response();
    }
    let requests = if call.descriptors.is_empty() {
        match call.request() {
            Ok(request) => vec![request],
            Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        }
    } else {
        let entries = |entry: JsonEntry| (entry.key, entry.value);
        rules::descriptors(call.descriptors.into_iter().map(|one| one.entries.into_iter().map(entries)))
    };
    let mut explanations = Vec::new();
    for request in &requests {
        explanations.push(domain.limiter.explain(&RequestHead::of(request)).await);
    }
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("json") {
        return Json(explanations).into_response();
    }
    explanations.iter().map(|explanation| format!("{explanation}\n")).collect::<String>().into_response()
}
