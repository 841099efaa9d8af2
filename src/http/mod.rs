//! Where requests meet limits: the layer, its service, and all that makes responses.
//!
//! A request's way: [`service`] → [`visit`] → [`charge`] (keys, costs, the store) → on, after a
//! wait or not ([`future`]), or out ([`rejection`], [`rejection_format`], [`grpc`]) → [`headers`], which [`merge`]
//! unites with those of layers further in. Whoever charges
//! it more or less on its way writes that into one [`ledger`]: a route, its handler ([`permit`]), and its
//! response ([`settle`]).

mod bill;
mod body;
mod charge;
mod effective_window;
mod future;
mod grpc;
mod grpc_details;
mod header_style;
mod headers;
mod in_flight;
mod keep_body;
mod layer;
mod ledger;
mod lists;
mod merge;
mod options;
mod permit;
mod rejection;
mod rejection_format;
mod rejection_response;
mod route_cost;
mod service;
mod settle;
mod shared;
mod text;
mod visit;
mod wait;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use header_style::{HeaderStyle, Reset};
pub use in_flight::{CountInFlight, InFlightFuture};
pub use keep_body::{KeepBody, KeepBodyFuture, KeepBodyLayer};
pub use layer::RateLimitLayer;
pub use options::HttpOptions;
pub use permit::{Permit, PermitRejection, Settled};
pub use rejection::{Reason, Rejection};
pub use rejection_response::IntoRejectionResponse;
pub use route_cost::RouteCost;
pub use service::RateLimit;
