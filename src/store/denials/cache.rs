//! A bounded cache of denials.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::denial::Denial;
use super::epochs::Epochs;
use crate::decision::Decision;
use crate::store::Charge;

/// The number of sets of two denials each. An attacker with that many denied keys evicts others' denials, which costs
/// calls to the database, but does not lift any limit.
pub(super) const SETS: usize = 4_096;

#[derive(Debug)]
pub(in crate::store) struct DenialCache {
    /// The time for which a denial is repeated without calling the database. Zero if none is.
    lifetime: Duration,
    pub(super) epochs: Epochs,
    /// Allocated by the first denial. Concurrent readers do not block each other.
    pub(super) sets: OnceLock<Box<[RwLock<Set>]>>,
}

/// Selected by the fingerprint of all keys of a request: so clients that share an exhausted limit have sets of their
/// own.
type Set = [Option<Box<Denial>>; 2];

impl DenialCache {
    /// The default of stores.
    pub(in crate::store) const LIFETIME: Duration = Duration::from_secs(1);

    /// Creates a cache whose denials are repeated for `lifetime`.
    pub(in crate::store) fn new(lifetime: Duration) -> Arc<Self> {
        Arc::new(Self { lifetime, epochs: Epochs::new(), sets: OnceLock::new() })
    }

    pub(in crate::store) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Returns the decision on a request that the database is certain to deny.
    ///
    /// `clock` is the present instant (in µs) of the database's clock, if it is known.
    pub(in crate::store) fn deny(&self, charges: &[Charge<'_>], clock: Option<u64>) -> Option<Decision> {
        let sets = self.sets.get()?;
        let fingerprint = fingerprint(charges);
        let set = set(sets, fingerprint).read().unwrap_or_else(PoisonError::into_inner);
        let denial = set.iter().flatten().find(|denial| denial.fingerprint == fingerprint && denial.is_of(charges))?;
        denial.repeat(self.lifetime, &self.epochs, charges, clock)
    }

    /// Caches a denial in place of an equal one, in an empty place, or in place of the older one.
    pub(super) fn insert(&self, denial: Denial) {
        if self.lifetime.is_zero() {
            return;
        }
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| RwLock::default()).collect());
        let mut set = set(sets, denial.fingerprint).write().unwrap_or_else(PoisonError::into_inner);
        let equal =
            set.iter().position(|place| place.as_ref().is_some_and(|other| other.fingerprint == denial.fingerprint));
        let place = equal.unwrap_or_else(|| usize::from(received(&set[1]) < received(&set[0])));
        match &mut set[place] {
            Some(other) => **other = denial,
            empty => *empty = Some(Box::new(denial)),
        }
    }
}

fn received(place: &Option<Box<Denial>>) -> Option<Instant> {
    place.as_ref().map(|denial| denial.received)
}

fn set(sets: &[RwLock<Set>], fingerprint: u128) -> &RwLock<Set> {
    &sets[(fingerprint >> 16) as usize % SETS]
}

/// Returns the fingerprint of a request's keys, which depends on their order.
pub(super) fn fingerprint(charges: &[Charge<'_>]) -> u128 {
    let fingerprints = charges.iter().map(|charge| charge.spec.fingerprint(charge.key));
    fingerprints.fold(0, |all: u128, fingerprint| all.rotate_left(1) ^ fingerprint)
}
