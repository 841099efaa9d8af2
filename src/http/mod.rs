//! The Tower layer and its service. No other code builds responses.
//!
//! The modules, in the order in which a request passes them:
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | [`options`], [`header_style`], [`layer`], [`config`], [`group`] |
//! | Accept a request | [`service`], [`flow`] (a request's way to its response) |
//! | Decide | [`lists`], [`charges`]; [`explain`] reports what they find |
//! | Reject | [`rejection`], [`rejection_format`], [`rejection_response`], [`grpc`] |
//! | Charge more or less later | [`ledger`], [`adjust`], [`permit`] |
//! | Respond | [`headers`], [`values`], [`merge`], [`body`] |
//!
//! [`in_flight`] is a layer of its own, and `axum` integrates permits and errors with Axum.

mod adjust;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
mod axum;
mod body;
mod charges;
mod config;
mod explain;
mod flow;
mod group;
mod grpc;
mod header_style;
mod headers;
mod in_flight;
mod layer;
mod ledger;
mod lists;
mod merge;
mod options;
mod permit;
mod rejection;
mod rejection_format;
mod rejection_response;
mod service;
mod values;

pub use body::{BodyPolicy, KeepBody, ResponseBody, WrapBody};
pub use header_style::{HeaderStyle, ResetFormat};
pub use in_flight::{CountInFlight, InFlightFuture};
pub use layer::{KeepBodyLayer, RateLimitLayer, RouteCost};
pub use options::HttpOptions;
pub use permit::{ChargeError, Permit, PermitRejection, Settled};
pub use rejection::Rejection;
pub use rejection_response::IntoRejectionResponse;
pub use service::{RateLimit, ResponseFuture};
