//! 100 requests a minute from each client, behind a CDN and a proxy. The CDN's networks are replaced at runtime.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, put};
use tower_ratelimit::key::TrustedProxies;
use tower_ratelimit::{ConfigError, FixedWindow, Limit, LiveLimits, RateLimitLayer, Store};

pub(crate) const TRY: &str = "
curl -i http://HOST/ -H 'x-forwarded-for: 203.0.113.7, 192.0.2.1'
curl -i -X PUT http://HOST/admin/networks -d '192.0.2.0/24 198.51.100.0/24'
";

/// The networks of the CDN when this program was built.
const NETWORKS: &str = "192.0.2.0/24 2001:db8:cd::/48";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let limits = LiveLimits::new([by_client(NETWORKS).expect("valid networks")]);
    let layer = RateLimitLayer::live_builder(&limits).store(store).build();
    Router::new()
        .route("/", get("hello\n"))
        .route_layer(layer)
        // Keep clients away from this route.
        .route("/admin/networks", put(replace))
        .with_state(limits)
}

/// Returns a limit for each client, given the networks of the CDN.
fn by_client(networks: &str) -> Result<Limit, ConfigError> {
    // The proxy runs on this machine, and appends its peer to the header: an edge of the CDN, or a client that bypasses
    // the CDN. Such a client is outside these networks. Entries to the left of it are ignored, because it wrote them.
    let proxies = TrustedProxies::try_cidrs(networks.split_whitespace().chain(["127.0.0.1"]))?;
    Ok(Limit::new("requests", FixedWindow::per_minute(100)).by(proxies.x_forwarded_for()))
}

/// Replaces the networks by those in the body. Send them to each process daily. Clients keep their usage.
async fn replace(State(limits): State<LiveLimits>, networks: String) -> Result<&'static str, (StatusCode, String)> {
    if networks.trim().is_empty() {
        return Err((StatusCode::BAD_REQUEST, "no networks\n".to_owned()));
    }
    let replaced = by_client(&networks).and_then(|limit| limits.replace([limit]));
    // After an error, the previous networks stay in force.
    replaced.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    Ok("replaced\n")
}
