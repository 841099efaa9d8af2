//! Where requests meet limits: the layer, its service, and all that makes responses.
//!
//! A request's way: [`service`] → [`visit`] → [`charge`] (keys, costs, the store) → on, after a
//! wait or not ([`future`]), or out ([`reject`], [`grpc`]) → [`headers`].

mod body;
mod charge;
mod future;
mod grpc;
mod headers;
mod layer;
mod ledger;
mod reject;
mod service;
mod visit;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use headers::{HeaderStyle, Reset};
pub use layer::{OnStoreError, RateLimitLayer};
pub use reject::{Reason, Rejection};
pub use service::RateLimit;
