//! What is measured of each peer: decisions in memory, a layer, decisions on Redis, or why it is left out.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::app::App;
use crate::peers::{
    AxumGcra, AxumGovernor, Governor, Ours, Throttled, TokioRateLimit, TowerGovernor, TowerRateLimiter,
    TowerResilience, Trypema,
};
use crate::quota::Quota;

/// The deadline of Redis. The usual half a second would turn slow decisions into errors.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why a peer cannot be compared.
pub type Why = &'static str;

/// A crate and its version.
pub trait Peer: Sync {
    fn name(&self) -> &'static str;

    /// Decides by text keys, as many as given, none of which expires.
    fn memory(&self, quota: Quota, keys: u32) -> Result<Box<dyn Memory>, Why>;

    fn headers(&self) -> Headers;

    /// An application that answers `hello`, limited by the peer's address.
    fn app(&self, quota: Quota, headers: bool) -> Result<App, Why>;

    fn redis<'a>(&'a self, _quota: Quota, _url: &'a str) -> BoxFuture<'a, Result<Box<dyn Shared>, Why>> {
        Box::pin(async { Err("no Redis") })
    }
}

/// Whether a layer reports a client's quota in headers.
#[derive(Clone, Copy, PartialEq)]
pub enum Headers {
    AsConfigured,
    Always,
    Never,
}

pub trait Memory: Send + Sync {
    /// Decides, and derives everything that a header needs: whether it is allowed, what remains, when more does.
    #[expect(clippy::ptr_arg, reason = "governor looks up what it stores")]
    fn decide(&self, key: &String) -> bool;

    fn decide_each(&self, keys: &[String]) {
        for key in keys {
            self.decide(key);
        }
    }
}

pub trait Shared: Send + Sync {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool>;
}

/// The subject that the others are compared with, in memory and as a layer.
pub const BASE: &str = "governor 0.10.4";
pub const LAYER: &str = "tower_governor 0.8.0";
pub const OURS: &str = "tower-ratelimit";

pub const PEERS: [&dyn Peer; 15] = [
    &Ours::Usual,
    &Ours::ByCycles,
    &Ours::WrappingBodies,
    &Ours::Leased,
    &Governor { state: false },
    &Governor { state: true },
    &TowerGovernor,
    &AxumGovernor,
    &AxumGcra,
    &TowerRateLimiter { gcra: false },
    &TowerRateLimiter { gcra: true },
    &Throttled,
    &TokioRateLimit,
    &TowerResilience,
    &Trypema,
];
