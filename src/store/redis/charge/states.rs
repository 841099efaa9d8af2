//! The states in a reply, for cached denials.

use super::prepared::PreparedCharge;
use crate::algorithm::{CompactState, KeyState, StoredKey};
use crate::store::redis::script::Reply;
use crate::store::redis::script::codec::{self, Codec, StoredState};

/// Returns the states that the keys of a decided request held before, or those of unused keys in place of invalid ones.
pub(in crate::store::redis) fn states(charges: &[PreparedCharge], reply: &Reply) -> Vec<StoredKey> {
    let mut keys = reply.states().map(|states| StoredState::parse_all(states).unwrap_or_default());
    let stored = charges.iter().map(PreparedCharge::charge).map(|charge| {
        let rule = charge.spec.rule().deciding();
        let states = keys.next().unwrap_or_default();
        let state = match Codec::of(rule) {
            Codec::Compact(codec) => codec.decode(&states).map(KeyState::Compact),
            Codec::Log(codec) => codec.decode(&states).map(KeyState::Log),
        };
        let penalty = charge.spec.penalty().and_then(|_| codec::penalty::decode(&keys.next()?));
        StoredKey { state: state.unwrap_or_else(|| rule.unused()), penalty: penalty.unwrap_or(CompactState::UNUSED) }
    });
    stored.collect()
}
