//! tower_governor, keyed by the peer's address.

use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::app::App;
use crate::quota::Quota;
use crate::subject::{Headers, LAYER, Memory, Peer, Why};

pub struct TowerGovernor;

impl Peer for TowerGovernor {
    fn name(&self) -> &'static str {
        LAYER
    }

    fn memory(&self, _: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Err("decides by governor")
    }

    fn headers(&self) -> Headers {
        Headers::AsConfigured
    }

    fn app(&self, quota: Quota, headers: bool) -> Result<App, Why> {
        let mut config = GovernorConfigBuilder::default();
        config.period(quota.period).burst_size(quota.burst);
        Ok(App::Axum(if headers {
            App::hello().layer(GovernorLayer::new(config.use_headers().finish().expect("not 0")))
        } else {
            App::hello().layer(GovernorLayer::new(config.finish().expect("not 0")))
        }))
    }
}
