//! Ends cached denials when a request has changed their keys.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::cache::{DenialCache, fingerprint};
use super::denial::Denial;
use super::epochs::Epochs;
use super::log_summary;
use crate::algorithm::StoredKey;
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;
use crate::store::evaluation::preview::CopiedStates;
use crate::store::{Charge, OwnedCharge, Resized};

/// The most limits of a request whose denial is cached.
pub(super) const MAX_LIMITS: usize = 8;

/// A request under way. When this is dropped, however the request ended, it begins the next epoch of the keys that the
/// request may have changed.
#[derive(Debug)]
pub(in crate::store) struct Invalidation {
    denials: Arc<DenialCache>,
    /// The counter and the epoch of each limit's key when the request was sent.
    epochs: SmallVec<[(usize, u64); 2]>,
    pub(super) sent: Instant,
    changes: bool,
}

impl Invalidation {
    /// Begins a request that concerns these keys and may change their state.
    pub(in crate::store) fn new<'a>(
        denials: &Arc<DenialCache>,
        keys: impl IntoIterator<Item = (&'a Arc<LimitSpec>, KeyHash)>,
        changes: bool,
    ) -> Self {
        let fingerprints = keys.into_iter().map(|(spec, key)| spec.fingerprint(key));
        let epochs =
            fingerprints.map(|fingerprint| (Epochs::counter(fingerprint), denials.epochs.current(fingerprint)));
        Self { denials: denials.clone(), epochs: epochs.collect(), sent: Instant::now(), changes }
    }

    /// Ends a request of which it is known whether it changed its keys. Caches nothing.
    pub(in crate::store) fn end(mut self, changes: bool) {
        self.changes = changes;
    }

    /// Ends a request that was decided by the `states` of its keys. Caches the decision if it is a denial and no strike.
    /// `until` is the instant (in µs) from which another override may apply.
    pub(in crate::store) fn decided(
        mut self,
        charges: &[Charge<'_>],
        decision: &Decision,
        states: impl IntoIterator<Item = StoredKey>,
        until: u64,
    ) {
        if decision.is_allowed() {
            return;
        }
        let is_struck = |(charge, outcome): (&Charge<'_>, &Outcome)| {
            let counts = charge.spec.counts_strikes();
            counts && outcome.denies() && (!outcome.is_penalty() || outcome.lockout().is_some())
        };
        let struck: SmallVec<[bool; 4]> = charges.iter().zip(decision.outcomes()).map(is_struck).collect();
        if struck.contains(&true) {
            let mut struck = struck.into_iter();
            self.epochs.retain(|_| struck.next() == Some(true));
            return;
        }
        self.changes = false;
        if charges.len() > MAX_LIMITS {
            return;
        }
        let (at, resized) = (decision.at().as_micros(), Resized::from(decision.resized()));
        let mut until = until;
        let mut summarize = |(charge, mut stored): (Charge<'_>, StoredKey)| {
            until = until.min(log_summary::summarize(&mut stored.state, &charge, at));
            stored
        };
        let states = resized.charges(charges).into_iter().zip(states).map(&mut summarize).collect();
        self.denials.insert(Denial {
            fingerprint: fingerprint(charges),
            epochs: self.epochs.iter().map(|(_, epoch)| *epoch).collect(),
            charges: charges.iter().map(OwnedCharge::from).collect(),
            states: CopiedStates(states),
            sent: self.sent,
            received: Instant::now(),
            resized,
            at,
            until,
        });
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        if self.changes {
            for (counter, _) in &self.epochs {
                self.denials.epochs.advance(*counter);
            }
        }
    }
}
