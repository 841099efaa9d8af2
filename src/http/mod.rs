//! The only code that builds responses: a layer, its service, and a request's way through them.
//!
//! A [`service`] passes each request to its [`request_state`], which decides about it by the [`charges`] of the limits that
//! apply, forwards or rejects it ([`rejection_format`], [`grpc`]), and adds [`headers`], which [`merge`] with those of
//! inner layers. Whatever charges it more or less on its way is recorded in a [`ledger`]: a [`route_adjustment`], its
//! handler by a [`permit`], and its response by a [`settlement`].

mod balance;
mod charge_error;
mod charges;
mod effective_window;
mod explain;
mod future;
mod grpc;
mod grpc_details;
mod header_style;
mod headers;
mod in_flight;
mod keep_body;
mod layer;
mod layer_config;
mod layer_group;
mod ledger;
mod lists;
mod merge;
mod missing_key;
mod options;
mod pending_decision;
mod permit;
mod permit_extractor;
mod rejection;
mod rejection_format;
mod rejection_response;
mod request_state;
mod response_body;
mod route_adjustment;
mod route_cost;
mod service;
mod settlement;
mod text;
mod wait;

pub use charge_error::ChargeError;
pub use future::ResponseFuture;
pub use header_style::{HeaderStyle, Reset};
pub use in_flight::{CountInFlight, InFlightFuture};
pub use keep_body::{KeepBody, KeepBodyFuture, KeepBodyLayer};
pub use layer::RateLimitLayer;
pub use options::HttpOptions;
pub use permit::{Permit, Settled};
pub use permit_extractor::PermitRejection;
pub use rejection::{Reason, Rejection};
pub use rejection_response::IntoRejectionResponse;
pub use response_body::ResponseBody;
pub use route_cost::RouteCost;
pub use service::RateLimit;
