//! Conditions: which requests a limit applies to, by method, route, header or time of day.
//!
//! Pass a condition to [`Limit::when`](crate::Limit::when). Combine conditions with [`and`](Condition::and),
//! [`or`](Condition::or) and [`not`], and write your own with [`from_fn`]. A limit's condition is evaluated before its
//! key and its cost.
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
//!     .when(when::from_fn(|head| head.path().ends_with(".zip")));
//! # let _ = (posts, large);
//! ```

mod closure;
mod condition;
mod description;
mod head;
#[cfg(feature = "time-zones")]
mod time_of_day;

pub use closure::{FromFn, from_fn};
pub use condition::{And, Condition, Labeled, Not, Or, not};
pub(crate) use description::Description;
pub use head::{Header, MethodIs, PathPrefix, Route, header, method, path_prefix, route};
#[cfg(feature = "time-zones")]
pub use time_of_day::{TimeOfDay, time_of_day, try_time_of_day};
