//! A conformance suite for implementations of [`Store`] and [`CompareAndSwap`].
//!
//! Needs the feature `conformance`. The suite is not covered by semantic versioning: a new release may check more.
//!
//! Each check compares a store with a [`MemoryStore`](crate::MemoryStore) on the same [`ManualClock`], counts the
//! tokens that concurrent requests get, or drops requests. It panics at the first difference, with the steps that led
//! to it. Call it in a test:
//!
//! ```
//! use tower_ratelimit::{MemoryStore, conformance};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! conformance::check_all(async |clock| MemoryStore::new().clock(clock)).await;
//! # });
//! ```
//!
//! The closure returns a store that decides by `clock`. It is called several times. The stores may share a database,
//! because each check uses keys of its own. A database that expires values by its own clock must keep them for ten
//! minutes longer, because the clock of the checks stands still meanwhile.
//!
//! For a database with [`CompareAndSwap`], call [`check_compare_and_swap`] instead, which also checks the database by
//! itself: within a process, a [`CasStore`](crate::store::CasStore) lets requests for the same key take turns, so that
//! the other checks would pass with a database that never compares.

mod compare_and_swap;
mod concurrency;
mod sequences;
mod trace;

use std::sync::Arc;

pub use self::concurrency::{check_cancellation, check_concurrency};
pub use self::sequences::{check_overrides, check_rates, check_remembered_denials};
use crate::store::{CompareAndSwap, Store};
use crate::time::ManualClock;

/// Runs all checks.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_all<S: Store>(new_store: impl AsyncFn(ManualClock) -> S) {
    check_algorithms(&new_store).await;
    check_clock_steps(&new_store).await;
    check_several_limits(&new_store).await;
    check_modes(&new_store).await;
    check_penalties(&new_store).await;
    check_overrides(&new_store).await;
    check_rates(&new_store).await;
    check_concurrency(&new_store).await;
    check_cancellation(&new_store).await;
    check_remembered_denials(&new_store).await;
}

/// Checks every algorithm: decisions, peeks, previews, refunds, resets, and the time until keys are unused again.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_algorithms<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limit in trace::algorithms() {
        trace::compare(new_store, vec![limit], trace::ClockSteps::Advances).await;
    }
}

/// Checks every algorithm with a clock that sometimes steps back.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_clock_steps<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limit in trace::algorithms() {
        trace::compare(new_store, vec![limit], trace::ClockSteps::StepsBack).await;
    }
}

/// Checks that several limits are charged together or not at all.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_several_limits<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::combinations() {
        trace::compare(new_store, limits, trace::ClockSteps::Advances).await;
    }
}

/// Checks soft limits, limits in shadow mode, and limits in quota mode.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_modes<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::modes() {
        trace::compare(new_store, limits, trace::ClockSteps::Advances).await;
    }
}

/// Checks [penalties](crate::Penalty).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_penalties<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::penalties() {
        trace::compare(new_store, limits, trace::ClockSteps::Advances).await;
    }
}

/// Checks a database with compare-and-swap, and runs [`check_all`] on a [`CasStore`](crate::store::CasStore) with it.
///
/// Checks that only one of concurrent writes succeeds, that versions are not used twice, that a value is returned as it
/// was set and with its own version, that an expired value counts as none, and that [`now`](CompareAndSwap::now) is the
/// time in µs and does not go back. It waits until a value has expired: for three seconds, or up to a minute if the
/// shortest TTL of the database is longer.
///
/// [The guide](crate::guide::stores#compare-and-swap) shows a database with its test.
///
/// # Panics
///
/// Panics if the database does not conform.
pub async fn check_compare_and_swap<B: CompareAndSwap>(database: Arc<B>) {
    let start = compare_and_swap::check_clock(&database).await;
    compare_and_swap::check_versions(&database).await;
    compare_and_swap::check_values(&database).await;
    compare_and_swap::check_races(&database).await;
    compare_and_swap::check_increments(&database).await;
    compare_and_swap::check_expiry(&database).await;
    let end = compare_and_swap::check_clock(&database).await;
    assert!(end > start, "`now` advances: it is still {end:?}");
    check_all(async |clock| compare_and_swap::store(&database, clock)).await;
}
