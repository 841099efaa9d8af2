//! The peers, each configured as its documentation recommends.

mod axum_gcra;
mod axum_governor;
mod governor;
mod ours;
mod throttled;
mod tokio_rate_limit;
mod tower_governor;
mod tower_rate_limiter;
mod tower_resilience;
mod trypema;

pub use axum_gcra::AxumGcra;
pub use axum_governor::AxumGovernor;
pub use governor::Governor;
pub use ours::{Ours, shared};
pub use throttled::Throttled;
pub use tokio_rate_limit::TokioRateLimit;
pub use tower_governor::TowerGovernor;
pub use tower_rate_limiter::TowerRateLimiter;
pub use tower_resilience::TowerResilience;
pub use trypema::Trypema;
