//! The codec of penalties.

use super::{ScriptArgs, StoredState};
use crate::algorithm::{CompactState, Penalty};

/// Returns the numbers that a script counts strikes by. Zero denials stand for none that count.
pub(in crate::store::redis) fn args(penalty: &Penalty, counts: bool) -> ScriptArgs {
    let denials = if counts { penalty.denials } else { 0 };
    let [within, first] = [penalty.within, penalty.first];
    let [longest, remembered] = [penalty.longest.unwrap_or(first), penalty.remembered.unwrap_or(0)];
    [denials.into(), within as f64, first as f64, longest as f64, remembered as f64].into_iter().collect()
}

/// Returns the state of a key that holds `stored`, or `None` if no script can have stored that.
pub(in crate::store::redis) fn decode(stored: &[StoredState]) -> Option<CompactState> {
    let Some(stored) = stored.first() else { return Some(CompactState::UNUSED) };
    let [low, high] = stored.counts.map(u64::from);
    Some(CompactState { expires_at: stored.instant()?, detail: high << 32 | low })
}
