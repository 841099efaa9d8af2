//! Bugs of other rate limiters. Each test names the project that had the bug.
//!
//! Some have their own modules: lost updates and over-admission by threads that check and then
//! write (`concurrency`); unbounded maps, and live keys evicted (`tests/memory.rs`); stampedes and
//! hopeless waits (`limiter`); zeros and overflows that lead to panics (`bad_input`).

mod cost;
mod memory;
mod time;

use crate::subject::Subject;
use support::rule::{Kind, Rule};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

/// An instant at which windows of all usual periods begin.
const MIDNIGHT: u64 = 1_767_225_600 * SECOND;

fn tokens(capacity: u32, amount: u32, interval: u64) -> Rule {
    Rule::Bucket { kind: Kind::Tokens, capacity, amount, interval }
}

/// Returns how many of `tries` requests with a cost of 1 at `at` are allowed.
fn allowed_of(tries: u64, subject: &Subject, at: u64) -> u64 {
    subject.set(at);
    (0..tries).filter(|_| subject.acquire(1).is_allowed()).count() as u64
}

/// Returns how many of 1.5 times `rate` requests are allowed, evenly spread over a second, after the bucket has been
/// emptied.
fn allowed_in_a_second(subject: &Subject, rate: u64) -> u64 {
    subject.set(MIDNIGHT);
    while subject.acquire(1).is_allowed() {}
    let tries = rate * 3 / 2;
    (1..=tries).map(|n| allowed_of(1, subject, MIDNIGHT + n * SECOND / tries)).sum()
}
