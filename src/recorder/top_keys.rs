//! The keys that are denied most often, counted in bounded memory.

/// The most frequent keys, by the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, "Efficient Computation of
/// Frequent and Top-k Elements in Data Streams", 2005): a new key replaces the least frequent one and inherits its
/// count.
#[derive(Debug)]
pub(super) struct TopKeys {
    capacity: usize,
    keys: Vec<CountedKey>,
}

#[derive(Clone, Debug)]
pub(super) struct CountedKey {
    pub(super) fingerprint: u128,
    /// The display of the key, once a request with it was rejected.
    pub(super) display: Option<Box<str>>,
    pub(super) count: u64,
    /// The part of the count that may be that of other keys.
    pub(super) error: u64,
}

impl TopKeys {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, keys: Vec::with_capacity(capacity) }
    }

    /// Counts a key.
    pub(super) fn count(&mut self, fingerprint: u128) {
        if let Some(known) = self.get_mut(fingerprint) {
            known.count += 1;
            return;
        }
        let new = CountedKey { fingerprint, display: None, count: 1, error: 0 };
        if self.keys.len() < self.capacity {
            self.keys.push(new);
        } else if let Some(rarest) = self.keys.iter_mut().min_by_key(|key| key.count) {
            *rarest = CountedKey { count: rarest.count + 1, error: rarest.count, ..new };
        }
    }

    pub(super) fn get_mut(&mut self, fingerprint: u128) -> Option<&mut CountedKey> {
        self.keys.iter_mut().find(|key| key.fingerprint == fingerprint)
    }

    /// Returns the keys, the most frequent first.
    pub(super) fn sorted(&self) -> Vec<CountedKey> {
        let mut keys = self.keys.clone();
        keys.sort_by(|one, other| other.count.cmp(&one.count).then(one.fingerprint.cmp(&other.fingerprint)));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_key_is_found_among_many_rare_ones() {
        let mut top = TopKeys::new(10);
        for rare in 0..10_000 {
            top.count(1_000 + rare);
            if rare % 4 == 0 {
                top.count(1);
            }
        }
        let first = &top.sorted()[0];
        assert_eq!(first.fingerprint, 1);
        assert!((2_500 - first.error..=2_500 + first.error).contains(&first.count), "{first:?}");
        assert_eq!(top.sorted().len(), 10);
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut top = TopKeys::new(3);
        for (fingerprint, times) in [(7, 3), (8, 5), (9, 1)] {
            (0..times).for_each(|_| top.count(fingerprint));
        }
        let counts: Vec<_> = top.sorted().iter().map(|key| (key.fingerprint, key.count, key.error)).collect();
        assert_eq!(counts, [(8, 5, 0), (7, 3, 0), (9, 1, 0)]);
    }
}
