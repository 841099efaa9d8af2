//! A layer that charges a route its own cost.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::keep_body::KeepBodyLayer;
use super::layer_config::LayerConfig;
use super::service::RateLimit;

/// Sets the cost of the requests of a route for the limits of a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Created by [`RateLimitLayer::cost`](crate::RateLimitLayer::cost), [`costs`](crate::RateLimitLayer::costs) or
/// [`cost_by`](crate::RateLimitLayer::cost_by). See [`cost`](crate::RateLimitLayer::cost) for how the two layers
/// interact.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
///
/// let limits = RateLimitLayer::new([Limit::new("hourly", FixedWindow::per_hour(1_000)).by(key::peer_ip())]);
///
/// let app: Router = Router::new()
///     .route("/report", get("report").route_layer(limits.cost(10)))
///     .layer(limits);
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct RouteCost {
    config: Arc<LayerConfig>,
}

impl RouteCost {
    pub(super) fn new(config: Arc<LayerConfig>) -> Self {
        Self { config }
    }

    /// Returns a layer that keeps the type of response bodies: see
    /// [`RateLimitLayer::keep_body`](crate::RateLimitLayer::keep_body).
    pub fn keep_body(&self) -> KeepBodyLayer {
        KeepBodyLayer::new(self.config.clone())
    }
}

impl<S> Layer<S> for RouteCost {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, &self.config)
    }
}

impl fmt::Debug for RouteCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteCost").field("cost", &self.config.cost).finish_non_exhaustive()
    }
}
