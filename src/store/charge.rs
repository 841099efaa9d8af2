//! What a request takes from one limit.

use std::sync::Arc;

use crate::decision::Subject;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;

/// A charge of one limit, of which a request makes one for each limit that applies to it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The limit.
    pub spec: &'a Arc<LimitSpec>,
    /// The key whose state is charged.
    pub key: KeyHash,
    /// The tokens to take. Zero takes nothing, is always allowed, and reports the state.
    pub cost: u64,
}

/// A charge that outlives the request's configuration, for what waits.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) spec: Arc<LimitSpec>,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
}

impl Charge<'_> {
    pub(super) fn subject(&self) -> Subject {
        let Charge { spec, key, cost } = *self;
        Subject { limit: spec.index(), identity: spec.identity(), key, cost, is_enforced: spec.is_enforced() }
    }
}

impl OwnedCharge {
    /// Borrows the charge, as stores take it.
    pub(crate) fn as_charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        Self { spec: charge.spec.clone(), key: charge.key, cost: charge.cost }
    }
}
