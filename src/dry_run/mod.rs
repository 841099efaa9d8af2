//! Dry runs of limits on recorded requests.
//!
//! A [`DryRun`] decides recorded requests at their own times, in memory. It counts the requests that each limit would have
//! denied. A [`Comparison`] runs two sets of limits, such as two versions of a rules file, and reports the requests that
//! only one of them denies.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::dry_run::{Comparison, DryRun};
//! use tower_ratelimit::key::PeerAddr;
//! use tower_ratelimit::{FixedWindow, Limit, RequestHead, Timestamp, key};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let hourly = |requests| [Limit::new("hourly", FixedWindow::per_hour(requests)).by(key::peer_ip())];
//! let mut comparison = Comparison::new(DryRun::new(hourly(3)), DryRun::new(hourly(2)));
//!
//! for second in 0..5 {
//!     let mut request = Request::get("/").body(()).unwrap();
//!     request.extensions_mut().insert(PeerAddr(([192, 0, 2, 7], 50_000).into()));
//!     comparison.request(Timestamp::from_micros(second * 1_000_000), &RequestHead::of(&request)).await;
//! }
//!
//! assert_eq!(comparison.before().report().denied, 2);
//! assert_eq!(comparison.after().report().denied, 3);
//! assert_eq!(comparison.newly_denied().count, 1);
//! # });
//! ```
//!
//! For a rules file, pass `rules.limits(&extractors)?` to [`DryRun::new`]. `cargo run --example dry_run --features
//! policies` compares two files on requests in JSON lines.
//!
//! # What a dry run can't tell
//!
//! - A recording has no responses. So requests are charged their cost on arrival, which neither the response
//!   ([`Limit::count_if`](crate::Limit::count_if), [`Limit::settle_by`](crate::Limit::settle_by)) nor a
//!   [`Permit`](crate::Permit) adjusts.
//! - A recording has no router. If limits depend on the route, as the key `path` of a rules file does, record the
//!   matched route, and insert it as a [`RoutePattern`](crate::key::RoutePattern). Otherwise, all requests share one
//!   key of [`key::matched_route`](crate::key::matched_route), and match no value of `path`.
//! - Clients might have sent other requests, had other requests been denied.
//! - All keys start unused.

mod comparison;
mod report;
mod run;
mod tally;

pub use comparison::{Change, Changes, Comparison};
pub use report::{LimitReport, Report, SampleLimit, SampleRequest};
pub use run::DryRun;
