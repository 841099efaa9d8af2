//! The Tower layer and its service. No other code builds responses.
//!
//! The modules, in the order in which a request passes them:
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | [`options`], [`layer`], [`config`] |
//! | Accept a request | [`service`] (a request's way to its response) |
//! | Decide or explain | [`charges`] |
//! | Reject | [`rejection`], [`response`] |
//! | Charge more or less later | [`ledger`], [`adjust`], [`permit`] |
//! | Respond | [`headers`], [`values`], [`body`] |
//! | Decide recorded requests | [`dry_run`] |

mod adjust;
mod body;
mod charges;
mod config;
#[doc(hidden)]
pub mod dry_run;
mod headers;
mod layer;
mod ledger;
mod options;
mod permit;
mod rejection;
mod response;
mod service;
mod values;

pub use body::{BodyPolicy, IntoRejectionResponse, KeepBody, ResponseBody, WrapBody};
pub use headers::{HeaderStyle, ResetFormat};
pub use layer::RateLimitLayer;
pub use options::HttpOptions;
pub use permit::{ChargeError, Permit, Settled};
pub use service::{RateLimit, ResponseFuture};
