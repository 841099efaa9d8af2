//! The states in a reply.

use super::prepared::PreparedCharge;
use crate::algorithm::{Algorithm, CompactState, KeyState, StoredKey};
use crate::store::redis::script::{Reply, state};

/// Returns the states that the keys of a decided request held before, for cached denials, or those of unused keys in
/// place of invalid ones.
pub(in crate::store::redis) fn states(charges: &[PreparedCharge], reply: &Reply) -> Vec<StoredKey> {
    let mut keys = reply.states();
    let stored = charges.iter().map(PreparedCharge::charge).map(|charge| {
        let rule = charge.spec.algorithm();
        let state = decode(rule, keys.next().unwrap_or_default()).unwrap_or_else(|| KeyState::unused(rule));
        let penalty = charge.spec.penalty().and_then(|_| state::decode(keys.next()?));
        StoredKey { state, penalty: penalty.unwrap_or(CompactState::UNUSED) }
    });
    stored.collect()
}

/// Decodes the state of a key under a rule, or returns `None` if no script can have stored it.
pub(super) fn decode(rule: &Algorithm, stored: &[u8]) -> Option<KeyState> {
    Some(match rule.keeps_log() {
        true => KeyState::Log(state::decode_log(rule, stored)?),
        false => KeyState::Compact(state::decode(stored)?),
    })
}
