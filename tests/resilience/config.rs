//! Invalid configurations are rejected when they are built.

use std::time::Duration;

use tower_ratelimit::{CircuitBreaker, ConfigError, FixedWindow, Limit, Limiter, RateLimitLayer, Share};

fn one() -> [Limit; 1] {
    [Limit::new("one", FixedWindow::per_day(1))]
}

#[track_caller]
fn rejected<T>(built: Result<T, ConfigError>, text: &str) {
    let Err(error) = built else { panic!("it was built") };
    assert_eq!(error.to_string(), text);
}

#[test]
fn values_of_zero_are_errors() {
    rejected(Limiter::builder(one()).deadline(Duration::ZERO).try_build(), "deadline is 0: use at least 1 ns");
    rejected(RateLimitLayer::builder(one()).deadline(Duration::ZERO).try_build(), "deadline is 0: use at least 1 ns");
    rejected(
        Share::try_one_of(0),
        "a limit is shared by 0 processes: count all processes that share it, including this one",
    );
}

#[test]
fn the_smallest_values_are_accepted() {
    assert!(Limiter::builder(one()).deadline(Duration::from_nanos(1)).try_build().is_ok());
    assert_eq!(Share::try_one_of(1).ok(), Some(Share::whole()));
    let longest = CircuitBreaker::new().failures(1).longest_pause(Duration::MAX);
    assert!(RateLimitLayer::builder(one()).circuit_breaker(longest).deadline(Duration::MAX).try_build().is_ok());
}

#[test]
#[should_panic(expected = "deadline is 0")]
fn a_deadline_of_0_panics_at_the_line_of_the_caller() {
    let _ = RateLimitLayer::builder(one()).deadline(Duration::ZERO).build();
}

#[test]
#[should_panic(expected = "shared by 0 processes")]
fn a_share_of_0_nodes_panics_at_the_line_of_the_caller() {
    let _ = Share::one_of(0);
}

#[test]
#[should_panic(expected = "a circuit breaker opens after 0 failures: use at least 1, or turn it off")]
fn a_breaker_that_opens_after_0_failures_panics() {
    let _ = CircuitBreaker::new().failures(0);
}

#[test]
#[should_panic(expected = "longest_pause is 0: use at least 1 ns")]
fn a_breaker_without_a_pause_panics() {
    let _ = CircuitBreaker::new().longest_pause(Duration::ZERO);
}

#[test]
fn shares_and_breakers_can_be_constants() {
    const SHARE: Share = Share::one_of(4);
    const BREAKER: CircuitBreaker = CircuitBreaker::new().failures(3).longest_pause(Duration::from_millis(500));
    assert_ne!(SHARE, Share::whole());
    assert_ne!(BREAKER, CircuitBreaker::default());
}
