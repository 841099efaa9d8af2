//! Decisions without HTTP, through the public API.

#![allow(clippy::unwrap_used)]

mod atomicity;
mod bad_input;
mod bounds;
mod bugs;
mod calendars;
mod call_limit;
mod clock;
mod concurrency;
mod conformance;
mod diagrams;
mod differential;
mod fairness;
mod limiter;
mod memcached;
mod overrides;
mod penalties;
mod refund;
mod rule;
mod sketch;
mod subject;
#[cfg(target_os = "linux")]
mod system_clock;
mod thresholds;
mod trace;
mod up_to;
mod vectors;
mod wait_order;
mod waits;
