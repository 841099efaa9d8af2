//! The numbers that a script decides by: whole, and under 2^53 wherever their exact value matters.

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Kind, Refill, Rounding};
use crate::decision::Cell;

pub(in crate::store::redis) type ScriptArgs = SmallVec<[f64; 8]>;

/// The largest cost that a script is given: no limit holds that much, so that a refund never needs more, whatever the
/// limit's capacity was at the time of the charge.
const MAX_COST: u64 = 1 << 33;

/// Returns the letter that selects the file of an algorithm.
pub(in crate::store::redis) fn tag(rule: &Algorithm) -> u8 {
    match rule.kind {
        Kind::LeakyBucketQueue => b'q',
        Kind::TokenBucket(Refill::Continuous) | Kind::LeakyBucket => b'd',
        Kind::TokenBucket(Refill::Interval) => b'i',
        Kind::FixedWindow => b'w',
        Kind::CalendarWindow(_) => b'k',
        Kind::SlidingWindowCounter(_) => b'c',
        Kind::SlidingLog | Kind::SlidingWindow { .. } => b'l',
        Kind::Penalty { .. } => b'p',
    }
}

/// Returns the arguments for the charge of a cell at about `now` (in µs). The first of them is the cost, except for a
/// penalty.
pub(in crate::store::redis) fn args(cell: &Cell, now: u64) -> ScriptArgs {
    let rule = cell.algorithm();
    let capacity = rule.hard_capacity();
    // Or a smaller cost that exceeds the capacity as well.
    let cost = cell.cost().min(MAX_COST.max(capacity + 1));
    match rule.kind {
        Kind::TokenBucket(Refill::Continuous) | Kind::LeakyBucket | Kind::LeakyBucketQueue => bucket(rule, cost),
        Kind::TokenBucket(Refill::Interval) => numbers([cost, capacity, rule.amount.into(), rule.span]),
        Kind::FixedWindow => numbers([cost, capacity, rule.span]),
        Kind::CalendarWindow(calendar) => {
            // The edges, in seconds, of the window that contains `now`, the one before and the two after, as no script
            // knows calendars.
            let (start, end) = calendar.window((now / 1_000_000) as i64);
            let (before, _) = calendar.window(start - 1);
            let (_, next) = calendar.window(end);
            let (_, next_but_one) = calendar.window(next);
            let mut args = numbers([cost, capacity]);
            args.extend([before, start, end, next, next_but_one].map(|edge| edge as f64));
            args
        }
        Kind::SlidingWindowCounter(rounding) => {
            numbers([cost, capacity, rule.span, u64::from(rounding == Rounding::Up)])
        }
        Kind::SlidingLog => numbers([cost, capacity, 1, rule.span, rule.capacity]),
        Kind::SlidingWindow { buckets } => {
            numbers([cost, capacity, rule.span / u64::from(buckets), rule.span, rule.capacity])
        }
        Kind::Penalty { longest, memory } => {
            // Zero denials stand for none that count.
            let denials = if cell.makes_strikes { rule.amount } else { 0 };
            numbers([denials.into(), rule.span, rule.capacity, longest, memory])
        }
    }
}

/// Returns what a script needs to give a limit another size: the limit's own, the overage in percent, and the span.
pub(super) fn own_size(cell: &Cell) -> ScriptArgs {
    let rule = cell.algorithm();
    let [tokens, amount] = rule.size();
    numbers([tokens.into(), amount.into(), cell.overage_percent.into(), rule.span])
}

/// A script counts a level as the time in which it drains, to the 1/amount of a µs. Costs and capacities are converted
/// to such times here, so that it only adds and compares.
fn bucket(rule: &Algorithm, cost: u64) -> ScriptArgs {
    let span = |tokens: u64| {
        let (units, amount) = (u128::from(tokens) * u128::from(rule.span), u128::from(rule.amount));
        [(units / amount) as f64, (units % amount) as f64]
    };
    // The largest level with which the cost is available: negative if it never is.
    let [room, room_rest] = rule.hard_capacity().checked_sub(cost).map_or([-1.0, 0.0], span);
    let [cost_span, cost_rest] = span(cost);
    // How much longer than needed a key with a level is kept, so that few charges have to move its expiry: a sixteenth
    // of the time that a full bucket takes to drain.
    let slack = (span(rule.hard_capacity())[0] / 16.0).floor();
    SmallVec::from_slice(&[cost as f64, rule.amount.into(), room, room_rest, cost_span, cost_rest, slack])
}

fn numbers<const N: usize>(numbers: [u64; N]) -> ScriptArgs {
    numbers.into_iter().map(|number| number as f64).collect()
}
