//! Overrides of single keys, with the same tests on every store.
#![allow(clippy::unwrap_used)]

mod expiry;
mod fleet;
mod keys;
mod place;
mod races;
mod requests;
mod sizes;
mod stores;
mod thresholds;

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
