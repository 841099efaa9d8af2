//! The Tower layer and its service. No other code builds responses.
//!
//! The modules, in the order in which a request passes them:
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | [`options`], [`header_style`], [`layer`], [`route_cost`], [`layer_config`], [`layer_group`] |
//! | Accept a request | [`service`] or [`keep_body`], [`future`], [`request_state`] (the state machine of a request) |
//! | Decide | [`lists`], [`charges`], [`missing_key`], [`pending_decision`] |
//! | Reject | [`rejection`], [`rejection_format`], [`rejection_response`], [`grpc`], [`grpc_details`], [`wait`] |
//! | Charge more or less later | [`ledger`], [`adjust`], [`permit`], [`charge_error`] |
//! | Respond | [`headers`], [`draft_headers`], [`triple_headers`], [`limit_text`], [`effective_window`], [`text`], [`merge`], [`response_body`] |
//!
//! [`in_flight`] is a layer of its own. [`error_response`] is for handlers that use a `Limiter`.

mod adjust;
mod charge_error;
mod charges;
mod draft_headers;
mod effective_window;
mod error_response;
mod explain;
mod future;
mod grpc;
mod grpc_details;
mod header_map;
mod header_style;
mod headers;
mod in_flight;
mod keep_body;
mod layer;
mod layer_config;
mod layer_group;
mod ledger;
mod limit_text;
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
mod route_cost;
mod service;
mod text;
mod triple_headers;
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
pub use rejection::Rejection;
pub use rejection_response::IntoRejectionResponse;
pub use response_body::ResponseBody;
pub use route_cost::RouteCost;
pub use service::RateLimit;
