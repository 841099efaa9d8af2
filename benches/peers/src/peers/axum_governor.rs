//! axum-governor, keyed by the peer's address.

use axum_governor::extractor::PeerIp;
use axum_governor::{GovernorConfigBuilder, GovernorLayer};

use super::governor::governors;
use crate::app::App;
use crate::quota::Quota;
use crate::subject::{Headers, Memory, Peer, Why};

pub struct AxumGovernor;

impl Peer for AxumGovernor {
    fn name(&self) -> &'static str {
        "axum-governor 2.1.2"
    }

    fn memory(&self, _: Quota, _: u32) -> Result<Box<dyn Memory>, Why> {
        Err("decides by governor")
    }

    fn headers(&self) -> Headers {
        Headers::Always
    }

    fn app(&self, quota: Quota, _: bool) -> Result<App, Why> {
        let config = GovernorConfigBuilder::default()
            .with_extractor(PeerIp::default())
            .expect_connect_info()
            .quota_default(governors(quota).into())
            .finish()
            .expect("it is valid");
        Ok(App::Axum(App::hello().layer(GovernorLayer::new(config))))
    }
}
