//! Exact rate limiting for Tower services.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod algorithm;
mod cost;
mod decision;
mod error;
mod hash;
mod http;
pub mod key;
mod limit;
mod limiter;
mod quota;
mod record;
mod request;
pub mod store;
mod time;

pub use algorithm::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Refill, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};
pub use cost::CostTable;
pub use decision::{Decision, Level, Outcome, Receipt, Verdict};
pub use error::{ConfigError, StoreError};
pub use http::{
    HeaderStyle, OnStoreError, RateLimit, RateLimitLayer, Reason, Rejection, Reset, ResponseBody, ResponseFuture,
};
pub use limit::{Limit, MissingKey};
pub use limiter::{Limiter, WaitError};
pub use request::RequestHead;
pub use store::{MemoryStore, Store};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
