//! What went wrong elsewhere, and must not here. Each test says where it was seen.
//!
//! Some have a module of their own: lost updates and over-admission by threads that check, then
//! write (`concurrency`); unbounded maps, and live keys evicted (`tests/memory.rs`); herds and
//! doomed waits (`limiter`); zeros and overflows that panic or divide (`bad_input`).

mod cost;
mod memory;
mod time;

use crate::rule::{Kind, Rule};
use crate::subject::Subject;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

/// Where a window of any usual period begins.
const MIDNIGHT: u64 = 1_767_225_600 * SECOND;

fn tokens(capacity: u32, amount: u32, interval: u64) -> Rule {
    Rule::Bucket { kind: Kind::Tokens, capacity, amount, interval }
}

/// How many of `tries` requests at `at`, of one token each, are allowed.
fn allowed_of(tries: u64, subject: &Subject, at: u64) -> u64 {
    subject.set(at);
    (0..tries).filter(|_| subject.acquire(1).is_allowed()).count() as u64
}

/// How many are allowed in a second of `rate` requests and a half more, evenly spread, after the
/// bucket has been emptied.
fn allowed_in_a_second(subject: &Subject, rate: u64) -> u64 {
    subject.set(MIDNIGHT);
    while subject.acquire(1).is_allowed() {}
    let tries = rate * 3 / 2;
    (1..=tries).map(|n| allowed_of(1, subject, MIDNIGHT + n * SECOND / tries)).sum()
}
