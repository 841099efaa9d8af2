//! What happens when a store is slow or fails: a deadline, a circuit breaker, and a policy for the
//! requests that it does not decide.
//!
//! A request's way through the `client`: are the `breakers` of its nodes closed? → the store, until the deadline →
//! or else the `policy`, which may let the `local` store decide. Each failure is told to the
//! observer, and some to the operator (`report`).

mod attempt;
mod breaker;
mod breakers;
mod client;
mod local;
mod policy;
#[cfg(feature = "tracing")]
mod report;
mod settings;
mod watch;

pub(crate) use client::StoreClient;
pub use policy::{OnStoreError, Share};
pub use settings::CircuitBreaker;
