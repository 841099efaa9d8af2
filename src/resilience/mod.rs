//! Handles slow and failing stores: a deadline, a circuit breaker per node, and fallback policies.
//!
//! | module | step |
//! | --- | --- |
//! | `client` | Configure the store and the policies |
//! | `decide` | Decide a request: call the store, and fall back if it fails |
//! | `call` | Call the store: ask the breakers, apply the deadline, record the result |
//! | `breaker` | Keep calls from nodes that fail |
//! | `fallback` | Decide by the policies of the limits, in a memory store |
//! | `refunds` | Refund and reset |
//! | `events`, `outage_log` | Report to the recorders and to the log |

mod breaker;
mod call;
mod client;
mod decide;
mod events;
mod fallback;
#[cfg(feature = "tracing")]
mod outage_log;
mod refunds;

pub use breaker::CircuitBreaker;
pub(crate) use client::{ClientConfig, StoreClient};
pub(crate) use decide::{Preview, PreviewSource};
pub(crate) use refunds::ReservationGuard;
