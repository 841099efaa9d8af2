//! What this process believes of overrides: what Redis has last said of each. The script knows better, and
//! decides nothing by a belief that is wrong.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::script::codec::StoredState;
use crate::algorithm::Size;

/// How many sets there are, and how many beliefs in each. Of more overrides than that, some cost another round
/// trip each time. Only what is set counts: no client can bring others' beliefs down by making keys up.
const SETS: usize = 4_096;
const IN_SET: usize = 4;

/// What a key's override is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Belief {
    /// The instant at which it expires, in µs by Redis' clock; 0 for never.
    pub(super) until: u64,
    pub(super) size: Size,
}

impl Belief {
    /// What Redis holds of it.
    pub(super) fn to_bytes(self) -> [u8; StoredState::SIZE] {
        StoredState { micros: self.until.into(), counts: self.size }.to_bytes()
    }

    pub(super) fn of(held: StoredState) -> Option<Self> {
        Some(Self { until: held.instant()?, size: held.counts })
    }

    /// Whether it has not expired.
    pub(super) fn holds(&self, now: u64) -> bool {
        self.until == 0 || self.until > now
    }
}

/// None until the first override.
#[derive(Debug, Default)]
pub(super) struct Beliefs(OnceLock<Box<[Mutex<Set>]>>);

/// The hashes of keys, each under its limit, the oldest belief first.
type Set = Vec<(u128, Belief)>;

impl Beliefs {
    pub(super) fn of(&self, print: u128) -> Option<Belief> {
        let set = lock(self.0.get()?, print);
        set.iter().find(|(known, _)| *known == print).map(|(_, belief)| *belief)
    }

    /// Takes up what Redis says: an override, or that there is none.
    pub(super) fn learn(&self, print: u128, is: Option<Belief>) {
        let sets = match is {
            Some(_) => self.0.get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect()),
            None => match self.0.get() {
                Some(sets) => sets,
                None => return,
            },
        };
        let mut set = lock(sets, print);
        set.retain(|(known, _)| *known != print);
        if let Some(belief) = is {
            if set.len() == IN_SET {
                set.remove(0);
            }
            set.push((print, belief));
        }
    }
}

fn lock(sets: &[Mutex<Set>], print: u128) -> MutexGuard<'_, Set> {
    sets[(print >> 16) as usize % SETS].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHasher;

    fn print(n: u64) -> u128 {
        KeyHasher::with_secret([0; 16]).hash(&n.to_le_bytes()).as_u128()
    }

    #[test]
    fn the_latest_are_kept_in_a_bounded_memory() {
        let beliefs = Beliefs::default();
        beliefs.learn(print(0), None);
        assert!(beliefs.0.get().is_none(), "it takes nothing until there is something to believe");
        for n in 0..100_000 {
            let belief = Belief { until: n, size: [1, 2] };
            beliefs.learn(print(n), Some(belief));
            assert_eq!(beliefs.of(print(n)), Some(belief));
        }
        let sets = beliefs.0.get().unwrap();
        let (held, room) = sets.iter().fold((0, 0), |(held, room), set| {
            let set = set.lock().unwrap();
            (held + set.len(), room + set.capacity())
        });
        assert!(held > SETS * IN_SET / 2 && held <= SETS * IN_SET, "{held}");
        assert!(room * size_of::<(u128, Belief)>() + size_of_val(&**sets) < 1 << 20, "{room}");
    }

    #[test]
    fn what_is_no_more_is_forgotten() {
        let beliefs = Beliefs::default();
        for until in [1, 2] {
            beliefs.learn(print(0), Some(Belief { until, size: [1, 0] }));
        }
        assert_eq!(beliefs.of(print(0)).map(|belief| belief.until), Some(2));
        beliefs.learn(print(0), None);
        assert_eq!(beliefs.of(print(0)), None);
    }

    #[test]
    fn a_belief_is_what_a_key_holds() {
        let belief = Belief { until: 1_767_225_600_000_001, size: [u32::MAX, 7] };
        let held = StoredState::parse_all(&belief.to_bytes()).unwrap();
        assert_eq!(Belief::of(held[0]), Some(belief));
        assert!(belief.holds(belief.until - 1) && !belief.holds(belief.until));
        assert!(Belief { until: 0, ..belief }.holds(u64::MAX));
    }
}
