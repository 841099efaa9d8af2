//! What all limits of the server have in common.

use std::sync::Arc;

use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::{Algorithm, Builder, HeaderStyle, HttpOptions, Limit, RateLimitLayer, Reset, Store};

/// Returns a limit that counts requests by the header `x-user`, or else by the client's address.
pub(crate) fn limit(name: &str, algorithm: impl Into<Algorithm>) -> Limit {
    Limit::new(name, algorithm).by(key::header("x-user").or(key::peer_ip()))
}

/// Returns the builder of a layer with the settings that all routes have in common.
pub(crate) fn layer(store: &Arc<dyn Store>, limits: Vec<Limit>) -> Builder<HttpOptions> {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(Reset::Seconds)];
    RateLimitLayer::builder(limits).store(store.clone()).headers(styles)
}
