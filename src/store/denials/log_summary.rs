//! Summaries of logs, so that a cached denial takes bounded memory.

use crate::algorithm::{KeyState, Log, State};
use crate::store::Charge;

/// Replaces a log by one of at most four entries that decides `charge` alike until the oldest charge expires, and returns
/// that instant (in µs). Leaves other states as they are, which decide alike forever.
///
/// Until then, a decision depends only on the instants at which certain numbers of tokens will have expired. The tokens
/// between these may as well have been charged together.
pub(super) fn summarize(state: &mut KeyState, charge: &Charge<'_>, now: u64) -> u64 {
    let (algorithm, KeyState::Log(log)) = (charge.spec.algorithm(), state) else { return u64::MAX };
    let used = log.used(algorithm, now);
    if used == 0 {
        return u64::MAX;
    }
    // The instant at which as many of the tokens in use have expired.
    let expiry = |tokens| now + log.wait(algorithm, now, used - tokens);
    let until_more = (used + 1).saturating_sub(algorithm.capacity());
    let until_cost = used.saturating_add(charge.cost).saturating_sub(algorithm.hard_capacity());
    let mut totals = [1, until_more.clamp(1, used), until_cost.clamp(1, used), used];
    totals.sort_unstable();
    let mut before = 0;
    let entries = totals.map(|total| {
        let charged = total - std::mem::replace(&mut before, total);
        (expiry(total) - algorithm.span, total as u32, charged as u32)
    });
    let until = expiry(1);
    if let Some(summary) = Log::of_entries(algorithm, entries) {
        *log = summary;
    }
    until
}
