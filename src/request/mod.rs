//! Decides what the head of a request is charged: its lists, the limits that apply, their keys and costs.

mod decide;
mod explain;
mod find;
mod lists;
mod options;
mod request_limiter;
mod request_limits;

pub(crate) use self::explain::explain;
pub(crate) use self::find::{Finder, PendingLimits};
pub use self::options::RequestOptions;
pub use self::request_limiter::RequestLimiter;
pub(crate) use self::request_limits::RequestLimits;
