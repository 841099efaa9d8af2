//! Overrides of single keys, with the same tests on every store.
#![allow(clippy::unwrap_used)]

mod backend;
mod expiry;
mod fleet;
mod keys;
mod races;
mod requests;
mod sizes;
mod stores;
mod thresholds;

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
