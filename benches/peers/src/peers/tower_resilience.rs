//! tower-resilience-ratelimiter: one bucket for all clients, without waiting.

use std::convert::Infallible;
use std::time::Duration;

use axum::error_handling::HandleErrorLayer;
use http::StatusCode;
use tower::ServiceBuilder;
use tower_resilience_ratelimiter::{RateLimiterLayer, RateLimiterServiceError};

use crate::app::App;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, Peer, Why};

pub struct TowerResilience;

impl Peer for TowerResilience {
    fn name(&self) -> &'static str {
        "tower-resilience-ratelimiter 0.14.0, no keys"
    }

    fn memory(&self, _: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Err("no keys, and decides in a layer only")
    }

    fn headers(&self) -> Headers {
        Headers::Never
    }

    fn app(&self, quota: Quota, _: bool) -> Result<App, Why> {
        // The handle is shared, because Axum makes a service for each route.
        let (layer, _handle) = RateLimiterLayer::builder()
            .limit_for_period(1)
            .refresh_period(quota.period)
            .burst_size(quota.burst as usize - 1)
            .timeout_duration(Duration::ZERO)
            .build_with_handle()
            .expect("it is valid");
        let refuse = async |_: RateLimiterServiceError<Infallible>| StatusCode::TOO_MANY_REQUESTS;
        Ok(App::Axum(App::hello().layer(ServiceBuilder::new().layer(HandleErrorLayer::new(refuse)).layer(layer))))
    }
}
