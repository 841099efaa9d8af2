//! The Tower layer and its service. No other code builds responses.
//!
//! The modules, in the order in which a request passes them:
//!
//! | step | modules |
//! | --- | --- |
//! | Configure | [`layer`], [`config`] |
//! | Accept a request | [`service`] (a request's way to its response) |
//! | Decide or explain | [`charges`] |
//! | Reject | [`response`] |
//! | Charge more or less later | [`ledger`], [`permit`] |
//! | Respond | [`headers`], [`body`] |
//! | Decide recorded requests | [`dry_run`] |

mod body;
mod charges;
mod config;
#[doc(hidden)]
pub mod dry_run;
mod headers;
mod layer;
mod ledger;
mod permit;
mod response;
mod service;

pub use body::{BodyPolicy, IntoRejectionResponse, KeepBody, ResponseBody, WrapBody};
pub use config::HttpOptions;
pub use headers::{HeaderStyle, ResetFormat};
pub use layer::RateLimitLayer;
pub use permit::{ChargeError, Permit, Settled};
pub use service::{RateLimit, ResponseFuture};
