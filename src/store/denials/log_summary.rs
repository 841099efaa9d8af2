//! Summaries of logs, so that a cached denial takes bounded memory.

use crate::algorithm::log::LogWindow;
use crate::algorithm::{Availability, KeyState, PreparedAlgorithm, RateAlgorithm};
use crate::store::Charge;

/// Replaces a log by one of at most four entries that decides `charge` alike until the oldest charge expires, and returns
/// that instant (in µs). Leaves other states as they are, which decide alike forever.
///
/// Until then, a decision depends only on the instants at which certain numbers of tokens will have expired. The tokens
/// between these may as well have been charged together.
pub(super) fn summarize(state: &mut KeyState, charge: &Charge<'_>, now: u64) -> u64 {
    let (PreparedAlgorithm::LogWindow(window), KeyState::Log(log)) = (charge.spec.rule().deciding(), state) else {
        return u64::MAX;
    };
    let used = u64::MAX - LogWindow { limit: u64::MAX, ..*window }.snapshot(log, now).remaining;
    if used == 0 {
        return u64::MAX;
    }
    // Under a limit of the tokens in use, a cost waits until as many of them have expired.
    let expiry = |tokens| match (LogWindow { limit: used, ..*window }).peek(log, now, tokens) {
        Availability::After(wait) => now + wait,
        Availability::Now { .. } | Availability::Never => now,
    };
    let until_more = (used + 1).saturating_sub(charge.spec.algorithm().capacity());
    let until_cost = used.saturating_add(charge.cost).saturating_sub(window.limit);
    let mut totals = [1, until_more.clamp(1, used), until_cost.clamp(1, used), used];
    totals.sort_unstable();
    let mut before = 0;
    let entries = totals.map(|total| {
        let charged = total - std::mem::replace(&mut before, total);
        (expiry(total) - window.period, total as u32, charged as u32)
    });
    let until = expiry(1);
    if let Some(summary) = window.rebuild(entries) {
        *log = summary;
    }
    until
}
