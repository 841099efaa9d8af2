//! The numbers that a script decides by: whole, and under 2^53 wherever their exact value matters.

use smallvec::SmallVec;

use crate::algorithm::gcra::Gcra;
use crate::algorithm::{Penalty, PreparedAlgorithm, Rounding};

pub(in crate::store::redis) type ScriptArgs = SmallVec<[f64; 12]>;

/// The largest cost that a script is given: no limit holds that much, so that a refund never needs more, whatever the
/// limit's capacity was at the time of the charge.
const MAX_COST: u64 = 1 << 33;

/// Returns the letter that selects the file of a rule.
pub(in crate::store::redis) fn tag(rule: &PreparedAlgorithm) -> u8 {
    match rule {
        PreparedAlgorithm::Gcra(rule) if rule.is_queue => b'q',
        PreparedAlgorithm::Gcra(_) => b'd',
        PreparedAlgorithm::IntervalBucket(_) => b'i',
        PreparedAlgorithm::FixedWindow(_) => b'w',
        PreparedAlgorithm::CalendarWindow(_) => b'k',
        PreparedAlgorithm::SlidingWindowCounter(_) => b'c',
        PreparedAlgorithm::LogWindow(_) => b'l',
    }
}

/// Returns the arguments for a charge of `cost`, which is the first of them, at about `now` (in µs). `remaining` will be
/// reported of a limit of `reported_capacity` tokens.
pub(in crate::store::redis) fn args(
    rule: &PreparedAlgorithm,
    cost: u64,
    reported_capacity: u64,
    now: u64,
) -> ScriptArgs {
    // Or a smaller cost that exceeds the capacity as well.
    let bounded = |capacity: u64| cost.min(MAX_COST.max(capacity + 1));
    match rule {
        PreparedAlgorithm::Gcra(rule) => gcra(rule, bounded(rule.capacity)),
        PreparedAlgorithm::IntervalBucket(rule) => {
            numbers([bounded(rule.capacity), rule.capacity, rule.amount.into(), rule.interval])
        }
        PreparedAlgorithm::FixedWindow(rule) => {
            let limit = rule.limit.into();
            numbers([bounded(limit), limit, rule.period])
        }
        PreparedAlgorithm::CalendarWindow(rule) => {
            // The edges, in seconds, of the window that contains `now`, the one before and the two after, as no script
            // knows calendars.
            let (start, end) = rule.calendar.window((now / 1_000_000) as i64);
            let (before, _) = rule.calendar.window(start - 1);
            let (_, next) = rule.calendar.window(end);
            let (_, next_but_one) = rule.calendar.window(next);
            let mut args = numbers([bounded(rule.limit.into()), rule.limit.into()]);
            args.extend([before, start, end, next, next_but_one].map(|edge| edge as f64));
            args
        }
        PreparedAlgorithm::SlidingWindowCounter(rule) => {
            let limit = rule.limit.into();
            numbers([bounded(limit), limit, rule.period, u64::from(rule.rounding == Rounding::Up)])
        }
        PreparedAlgorithm::LogWindow(rule) => {
            numbers([bounded(rule.limit), rule.limit, rule.width, rule.period, reported_capacity])
        }
    }
}

/// Returns the numbers that a script counts strikes by. Zero denials stand for none that count.
pub(in crate::store::redis) fn penalty(penalty: &Penalty, counts: bool) -> ScriptArgs {
    let denials = if counts { penalty.denials.into() } else { 0 };
    let [within, first] = [penalty.within, penalty.first];
    numbers([denials, within, first, penalty.longest.unwrap_or(first), penalty.remembered.unwrap_or(0)])
}

/// A script counts a level as the time in which it drains, to the 1/amount of a µs. Costs and capacities are converted
/// to such times here, so that it only adds and compares.
fn gcra(rule: &Gcra, cost: u64) -> ScriptArgs {
    let span = |tokens: u64| {
        let (units, amount) = (u128::from(tokens) * u128::from(rule.interval), u128::from(rule.amount));
        [(units / amount) as f64, (units % amount) as f64]
    };
    // The largest level with which the cost is available: negative if it never is.
    let [room, room_rest] = rule.capacity.checked_sub(cost).map_or([-1.0, 0.0], span);
    let [cost_span, cost_rest] = span(cost);
    // How much longer than needed a key with a level is kept, so that few charges have to move its expiry: a sixteenth
    // of the time that a full bucket takes to drain.
    let slack = (span(rule.capacity)[0] / 16.0).floor();
    SmallVec::from_slice(&[cost as f64, rule.amount.into(), room, room_rest, cost_span, cost_rest, slack])
}

fn numbers<const N: usize>(numbers: [u64; N]) -> ScriptArgs {
    numbers.into_iter().map(|number| number as f64).collect()
}
