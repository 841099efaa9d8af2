//! Decides what the head of a request is charged: its lists, the limits that apply, their keys and costs.
//!
//! | module | content |
//! | --- | --- |
//! | `request_limiter` | [`RequestLimiter`], which decides and explains requests |
//! | `decide`, [`explain()`], [`dry_run`] | Decide a request, explain what would happen to it, decide recorded requests |
//! | `find` | Finds the limits that apply to a request, with their keys and costs |
//! | `lists` | Lists of requests that are rejected, or exempt |
//! | `options`, `request_limits` | The settings of a builder, and the limits with their lists and cost |

mod decide;
pub mod dry_run;
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
