//! Handles slow and failing stores: a deadline, a circuit breaker per node, and fallback policies.
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | `settings`, `client_config`, `client` |
//! | Decide a request | `decide`: calls the store, and falls back if it fails |
//! | Call the store | `call`: admission by the `breakers`, one `breaker` per node; the deadline; the `attempt` |
//! | Fall back | `fallback`: by the policies of the limits, in a memory store |
//! | Refund and delay | `refunds`, `reservation` |
//! | Report | `events` to the recorders, `outage_log` to the log |

mod attempt;
mod breaker;
mod breakers;
mod call;
mod client;
mod client_config;
mod decide;
mod events;
mod fallback;
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
