//! When a limit applies: to which requests, at which time of day.
//!
//! A condition is asked before the limit's key and cost are. [`Limit::when`](crate::Limit::when) takes
//! one, be it one of these or a closure over a request's head; several make one with
//! [`and`](Condition::and), [`or`](Condition::or) and [`not`].
//!
//! ```
//! use tower_ratelimit::when::{self, Condition};
//! use tower_ratelimit::{FixedWindow, Limit, key};
//! use http::Method;
//!
//! let posts = Limit::new("posts", FixedWindow::per_minute(10))
//!     .when(when::method(Method::POST).and(when::not(when::header("x-plan", "pro"))))
//!     .by(key::peer_ip());
//!
//! let large = Limit::new("large", FixedWindow::per_hour(5))
//!     .when(|head: &tower_ratelimit::RequestHead<'_>| head.uri.path().ends_with(".zip"));
//! # let _ = (posts, large);
//! ```

mod combine;
mod condition;
mod head;
#[cfg(feature = "time-zones")]
mod time_of_day;

pub use combine::{And, Not, Or, not};
pub use condition::Condition;
pub use head::{Header, MethodIs, PathPrefix, Route, header, method, path_prefix, route};
#[cfg(feature = "time-zones")]
pub use time_of_day::{TimeOfDay, time_of_day, try_time_of_day};
