//! Handles slow and failing stores: a deadline, a circuit breaker per node, and fallback policies.
//!
//! The `client` sends a request to the store if the `breakers` of its nodes are closed, and waits until the deadline. If
//! the store does not decide, the policy (`OnStoreError`) applies, which may decide by the `local_store`. The client reports failures
//! to the recorders, and outages to the log.

mod attempt;
mod breaker;
mod breakers;
mod call;
mod client;
mod client_config;
mod decide;
mod events;
mod fallback;
mod fallback_policies;
mod local_store;
mod operation;
#[cfg(feature = "tracing")]
mod outage_log;
mod preview;
mod refunds;
mod reservation;
mod settings;

pub(crate) use client::StoreClient;
pub(crate) use client_config::ClientConfig;
pub(crate) use preview::{Preview, PreviewSource};
pub(crate) use reservation::ReservationGuard;
pub use settings::CircuitBreaker;
