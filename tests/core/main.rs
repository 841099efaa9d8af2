//! Everything below HTTP, by what it does, through the public API.

#![allow(clippy::unwrap_used)]

mod atomicity;
mod bad_input;
mod bounds;
mod bugs;
mod clock;
mod concurrency;
mod dates;
mod differential;
mod floors;
mod limiter;
mod oracle;
mod refund;
mod rule;
mod subject;
mod trace;
mod turns;
mod waits;
