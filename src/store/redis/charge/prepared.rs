//! Charges as they are sent: at the size that the limit is expected to have for the key.

use std::sync::Arc;

use super::override_cache::{CachedOverride, OverrideCache};
use crate::algorithm::Kind;
use crate::hash::KeyHash;
use crate::store::redis::error::Fault;
use crate::store::redis::limit_encoding::LimitEncoding;
use crate::store::redis::script::Reply;
use crate::store::{Charge, LimitSpec};

pub(in crate::store::redis) const INVALID_OVERRIDE: Fault = Fault::Reply("an invalid override");

/// An owned [`Charge`] that waits for its reply.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct PreparedCharge {
    /// The limit at its size for the key.
    pub(super) spec: Arc<LimitSpec>,
    pub(super) key: KeyHash,
    pub(super) cost: u64,
    /// Set if the limit can be overridden.
    pub(super) overridable: Option<Box<Overridable>>,
}

/// A limit whose size for a key may be overridden.
#[derive(Clone, Debug)]
pub(super) struct Overridable {
    /// The limit without an override.
    spec: Arc<LimitSpec>,
    /// The script decides nothing if the override is not this one.
    pub(super) expected: Option<CachedOverride>,
}

impl PreparedCharge {
    /// Prepares a charge, with the override that is cached for its key.
    pub(in crate::store::redis) fn new(charge: &Charge<'_>, overrides: &OverrideCache) -> Self {
        let &Charge { spec, key, cost } = charge;
        let mut prepared = Self { spec: spec.clone(), key, cost, overridable: None };
        if spec.is_overridable() {
            prepared.overridable = Some(Box::new(Overridable { spec: spec.clone(), expected: None }));
            // An invalid override is reported by the script's reply.
            let _ = prepared.set_override(overrides.get(spec.fingerprint(key)));
        }
        prepared
    }

    pub(in crate::store::redis) fn charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }

    /// Returns the charge of the limit without an override.
    pub(in crate::store::redis) fn without_override(&self) -> Charge<'_> {
        let spec = self.overridable.as_ref().map_or(&self.spec, |overridable| &overridable.spec);
        Charge { spec, ..self.charge() }
    }

    /// Returns whether its arguments depend on the current calendar window.
    pub(in crate::store::redis) fn is_calendar(&self) -> bool {
        matches!(self.spec.algorithm().kind, Kind::CalendarWindow(_))
    }

    /// Returns the instant (in µs) at which its override expires.
    pub(in crate::store::redis) fn override_expiry(&self) -> Option<u64> {
        let expected = self.overridable.as_ref()?.expected?;
        (expected.expires_at > 0).then_some(expected.expires_at)
    }

    /// Returns the template of its request, if it charges one token and its arguments are the same for all keys.
    pub(super) fn template(&self) -> Option<Arc<[u8]>> {
        if self.cost != 1 || self.overridable.is_some() {
            return None;
        }
        LimitEncoding::of(&self.spec).template.clone()
    }

    fn set_override(&mut self, expected: Option<CachedOverride>) -> Result<(), Fault> {
        let Some(overridable) = &mut self.overridable else { return Ok(()) };
        self.spec = match expected {
            None => overridable.spec.clone(),
            Some(CachedOverride { size, .. }) => {
                Arc::new(overridable.spec.with_override(size).ok_or(INVALID_OVERRIDE)?)
            }
        };
        overridable.expected = expected;
        Ok(())
    }
}

/// Applies the overrides of a reply that decided nothing because an override had changed.
pub(in crate::store::redis) fn update_overrides(
    charges: &mut [PreparedCharge],
    reply: &Reply,
    overrides: &OverrideCache,
) -> Result<(), Fault> {
    if reply.keys() != charges.len() {
        return Err(Fault::Reply("another number of limits"));
    }
    for (charge, states) in charges.iter_mut().zip(reply.states()) {
        if charge.overridable.is_some() {
            let current = parse_override(states)?;
            charge.set_override(current)?;
            overrides.set(charge.spec.fingerprint(charge.key), current);
        }
    }
    Ok(())
}

/// Parses the state of an override's key, which is empty if there is no override.
pub(in crate::store::redis) fn parse_override(states: &[u8]) -> Result<Option<CachedOverride>, Fault> {
    match states {
        [] => Ok(None),
        state => CachedOverride::from_bytes(state).map(Some).ok_or(INVALID_OVERRIDE),
    }
}
