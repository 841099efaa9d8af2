//! What all limits of the server have in common.

use std::sync::Arc;

use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::{
    Algorithm, Builder, HeaderStyle, HttpOptions, Limit, MetricsRecorder, RateLimitLayer, ResetFormat, Store,
};

/// The store and the recorder of all layers.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<MetricsRecorder>,
}

/// Returns a limit that counts requests by the header `x-user`, or else by the client's address.
pub(crate) fn limit(name: &str, algorithm: impl Into<Algorithm>) -> Limit {
    Limit::new(name, algorithm).by(key::header("x-user").or(key::peer_ip()))
}

/// Returns the builder of a layer with the settings that all routes have in common.
pub(crate) fn layer(backend: &Backend, limits: Vec<Limit>) -> Builder<HttpOptions> {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    RateLimitLayer::builder(limits).store(backend.store.clone()).recorder(backend.metrics.clone()).headers(styles)
}
