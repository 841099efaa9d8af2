//! The charges of an operation, one for each limit.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::error::StoreError;
use crate::key::{self, Key};
use crate::resilience::StoreClient;
use crate::store::{Charge, StoreFuture};

/// Returns an error unless there are as many charges as limits.
pub(super) fn check_count(client: &StoreClient, given: usize) -> Result<(), StoreError> {
    let limits = client.limits().as_slice().len();
    if given == limits { Ok(()) } else { Err(StoreError::charge_count(given, limits)) }
}

/// The charges of an operation. More than 8 need an allocation.
pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 8]>;

/// Returns the charges of one key, with the cost for each limit by its index.
pub(super) fn charges_of_key<'a>(
    client: &'a StoreClient,
    key: &impl Key,
    cost: impl Fn(usize) -> u64,
) -> impl Iterator<Item = Charge<'a>> {
    let key = key::hash(key, client.hasher());
    let limits = client.limits();
    let charge = move |(index, spec)| Charge { spec: limits.current(spec), key, cost: cost(index) };
    limits.all_specs().iter().enumerate().map(charge)
}

/// Charges one key the same cost under every limit.
pub(super) fn acquire_from_all(client: &Arc<StoreClient>, key: &impl Key, cost: u64) -> StoreFuture<Decision> {
    // Filled in place, because moving the buffer takes as long as hashing the key.
    let mut charges = Charges::new();
    charges.extend(charges_of_key(client, key, |_| cost));
    acquire(client, &charges)
}

/// Decides the charges. Without limits, there are none.
pub(super) fn acquire(client: &Arc<StoreClient>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
    if charges.is_empty() { StoreFuture::ready(Ok(Decision::uncounted())) } else { client.acquire(charges) }
}
