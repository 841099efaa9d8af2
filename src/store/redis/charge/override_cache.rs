//! Caches the overrides that Redis has last reported.
//!
//! The script compares the cached override with the actual one, and decides nothing if they differ.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::algorithm::{CompactState, Size};
use crate::store::redis::script::state::{self, STATE};

/// The number of sets, and of overrides in each. Overrides that do not fit cost another round trip. Only keys that have
/// an override are cached, so clients cannot evict any by making up keys.
const SETS: usize = 4_096;
const SET_SIZE: usize = 4;

/// The override of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store::redis) struct CachedOverride {
    /// The instant at which it expires, in µs of Redis' clock; 0 for never.
    pub(in crate::store::redis) expires_at: u64,
    pub(in crate::store::redis) size: Size,
}

impl CachedOverride {
    /// Returns the encoded state of the override's key.
    pub(in crate::store::redis) fn to_bytes(self) -> [u8; STATE] {
        let [first, second] = self.size.map(u64::from);
        state::encode(&CompactState { expires_at: self.expires_at, at: 0, detail: second << 32 | first })
    }

    /// Decodes the state of the override's key, or returns `None` if it is malformed.
    pub(in crate::store::redis) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let CompactState { expires_at, detail, .. } = state::decode(bytes)?;
        Some(Self { expires_at, size: [detail as u32, (detail >> 32) as u32] })
    }
}

/// A set-associative cache, by the fingerprints of limits' keys. It takes no memory until the first override.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct OverrideCache(OnceLock<Box<[Mutex<Set>]>>);

/// Fingerprints and their overrides, the oldest first.
type Set = Vec<(u128, CachedOverride)>;

impl OverrideCache {
    pub(in crate::store::redis) fn get(&self, fingerprint: u128) -> Option<CachedOverride> {
        let set = lock(self.0.get()?, fingerprint);
        set.iter().find(|(known, _)| *known == fingerprint).map(|(_, cached)| *cached)
    }

    /// Caches the override of a key, or that there is none.
    pub(in crate::store::redis) fn set(&self, fingerprint: u128, current: Option<CachedOverride>) {
        let sets = match current {
            Some(_) => self.0.get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect()),
            None => match self.0.get() {
                Some(sets) => sets,
                None => return,
            },
        };
        let mut set = lock(sets, fingerprint);
        set.retain(|(known, _)| *known != fingerprint);
        if let Some(current) = current {
            if set.len() == SET_SIZE {
                set.remove(0);
            }
            set.push((fingerprint, current));
        }
    }
}

fn lock(sets: &[Mutex<Set>], fingerprint: u128) -> MutexGuard<'_, Set> {
    sets[(fingerprint >> 16) as usize % SETS].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHasher;

    fn fingerprint(n: u64) -> u128 {
        KeyHasher::with_secret([0; 16]).hash(&n.to_le_bytes()).as_u128()
    }

    #[test]
    fn the_latest_overrides_are_kept_in_bounded_memory() {
        let cache = OverrideCache::default();
        cache.set(fingerprint(0), None);
        assert!(cache.0.get().is_none(), "no memory is allocated before the first override");
        for n in 0..100_000 {
            let cached = CachedOverride { expires_at: n, size: [1, 2] };
            cache.set(fingerprint(n), Some(cached));
            assert_eq!(cache.get(fingerprint(n)), Some(cached));
        }
        let sets = cache.0.get().unwrap();
        let (held, room) = sets.iter().fold((0, 0), |(held, room), set| {
            let set = set.lock().unwrap();
            (held + set.len(), room + set.capacity())
        });
        assert!(held > SETS * SET_SIZE / 2 && held <= SETS * SET_SIZE, "{held}");
        assert!(room * size_of::<(u128, CachedOverride)>() + size_of_val(&**sets) < 1 << 20, "{room}");
    }

    #[test]
    fn a_removed_override_is_forgotten() {
        let cache = OverrideCache::default();
        for expires_at in [1, 2] {
            cache.set(fingerprint(0), Some(CachedOverride { expires_at, size: [1, 0] }));
        }
        assert_eq!(cache.get(fingerprint(0)).map(|cached| cached.expires_at), Some(2));
        cache.set(fingerprint(0), None);
        assert_eq!(cache.get(fingerprint(0)), None);
    }

    #[test]
    fn an_override_survives_its_encoding() {
        let cached = CachedOverride { expires_at: 1_767_225_600_000_001, size: [u32::MAX, 7] };
        assert_eq!(CachedOverride::from_bytes(&cached.to_bytes()), Some(cached));
    }
}
