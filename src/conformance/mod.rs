//! A conformance suite for implementations of [`Store`] and [`CompareAndSwap`](crate::store::CompareAndSwap).
//!
//! Needs the feature `conformance`. The suite is not covered by semantic versioning: a new release may check more.
//!
//! Each check compares a store with a [`MemoryStore`](crate::MemoryStore) on the same [`ManualClock`], or counts what
//! concurrent requests are allowed. It panics at the first difference, with the steps that led to it. Call it in a test:
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
//! because each check uses keys of its own. A database that expires values by its own clock must keep them for ten minutes
//! longer, because the clock of the checks stands still meanwhile: see
//! [`CasStore::ttl_margin`](crate::store::CasStore::ttl_margin).

mod concurrency;
mod limits;
mod overrides;
mod random;
mod trace;

use crate::store::Store;
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
    check_concurrency(&new_store).await;
}

/// Checks every algorithm: decisions, peeks, refunds, resets, and the time until keys are unused again.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_algorithms<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limit in limits::algorithms() {
        trace::compare(new_store, vec![limit], trace::Clock::Advances).await;
    }
}

/// Checks every algorithm with a clock that sometimes steps back.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_clock_steps<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limit in limits::algorithms() {
        trace::compare(new_store, vec![limit], trace::Clock::StepsBack).await;
    }
}

/// Checks that several limits are charged together or not at all.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_several_limits<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in limits::combinations() {
        trace::compare(new_store, limits, trace::Clock::Advances).await;
    }
}

/// Checks soft limits, limits in shadow mode, and limits in quota mode.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_modes<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in limits::modes() {
        trace::compare(new_store, limits, trace::Clock::Advances).await;
    }
}

/// Checks [penalties](crate::Penalty).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_penalties<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in limits::penalties() {
        trace::compare(new_store, limits, trace::Clock::Advances).await;
    }
}

/// Checks [overrides](crate::Overrides), if the store [supports them](Store::overrides).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_overrides<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    overrides::compare(new_store).await;
}

/// Checks that concurrent requests are allowed exactly what the limits allow.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_concurrency<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    concurrency::count_allowed(new_store).await;
    concurrency::count_allowed_by_both(new_store).await;
}
