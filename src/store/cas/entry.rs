//! The value of one key during a request.

use super::backend::Versioned;
use super::error::undecodable;
use crate::algorithm::{ChargeMark, CompactState, DecodeError, KeyState, StoredKey};
use crate::charge::Charge;
use crate::error::StoreError;
use crate::time::Timestamp;

/// The state of a charge's key, before and after the evaluation.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) version: Option<u64>,
    pub(super) before: StoredKey,
    pub(super) after: StoredKey,
    /// The state that this request has already written.
    pub(super) written: Option<Written>,
}

/// A state that a request has written.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) state: StoredKey,
    /// The mark of the charge, if the key was charged.
    pub(super) mark: Option<ChargeMark>,
}

impl Entry {
    pub(super) fn new(key: String, found: Option<Versioned>, charge: &Charge<'_>) -> Result<Self, StoreError> {
        let unused = unused(charge);
        let mut entry = Self { key, version: None, before: unused.clone(), after: unused, written: None };
        entry.set(found, charge)?;
        Ok(entry)
    }

    /// Replaces the state by the value that was found.
    pub(super) fn set(&mut self, found: Option<Versioned>, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.version = found.as_ref().map(|found| found.version);
        self.before = match &found {
            None => unused(charge),
            Some(found) => decode(&found.value, charge).map_err(|error| undecodable(&self.key, error))?,
        };
        self.written = None;
        Ok(())
    }

    /// Refunds the charge with this mark.
    pub(super) fn refund(&mut self, mark: ChargeMark, at: Timestamp, charge: &Charge<'_>) {
        self.after = self.before.clone();
        self.after.state.as_state_mut().refund(charge.spec.algorithm(), mark, at.as_micros(), charge.cost);
    }

    /// Returns whether the request has written another state than it would write now.
    pub(super) fn is_outdated(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.state != self.after)
    }

    pub(super) fn has_changed(&self) -> bool {
        self.after != self.before
    }
}

fn unused(charge: &Charge<'_>) -> StoredKey {
    StoredKey { state: KeyState::unused(charge.spec.algorithm()), penalty: CompactState::UNUSED }
}

fn decode(bytes: &[u8], charge: &Charge<'_>) -> Result<StoredKey, DecodeError> {
    let stored = StoredKey::from_bytes(bytes)?;
    let is_log = matches!(stored.state, KeyState::Log(_));
    if is_log == charge.spec.algorithm().keeps_log() { Ok(stored) } else { Err(DecodeError::Malformed) }
}
