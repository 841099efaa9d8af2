//! Ends cached denials when a request has changed their keys.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::cache::{DenialCache, fingerprint};
use super::denial::Denial;
use super::epochs::Epochs;
use crate::decision::{Decision, Outcome};
use crate::store::redis::charge::outcomes;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::script::Reply;
use crate::store::redis::script::codec::Codec;

/// The most limits of a request whose denial is cached, and the most bytes of its reply.
pub(super) const MAX_LIMITS: usize = 8;
pub(super) const MAX_BYTES: usize = 256;

/// A request under way. When this is dropped, however the request ended, it begins the next epoch of the keys that the
/// request may have changed.
#[derive(Debug)]
pub(in crate::store::redis) struct Invalidation {
    denials: Arc<DenialCache>,
    /// The counter and the epoch of each limit's key when the request was sent.
    epochs: SmallVec<[(usize, u64); 2]>,
    pub(super) sent: Instant,
    changes: bool,
}

impl Invalidation {
    /// Begins a request that concerns the keys with these fingerprints and may change their state.
    pub(in crate::store::redis) fn new(
        denials: &Arc<DenialCache>,
        fingerprints: impl Iterator<Item = u128>,
        changes: bool,
    ) -> Self {
        let epochs =
            fingerprints.map(|fingerprint| (Epochs::counter(fingerprint), denials.epochs.current(fingerprint)));
        Self { denials: denials.clone(), epochs: epochs.collect(), sent: Instant::now(), changes }
    }

    /// Ends a request that changed nothing.
    pub(in crate::store::redis) fn cancel(mut self) {
        self.changes = false;
    }

    /// Ends a request that was decided. Caches the decision if it is a denial that changed nothing: neither converted a
    /// rate nor was a strike.
    pub(in crate::store::redis) fn decided(
        mut self,
        charges: SmallVec<[PreparedCharge; 2]>,
        reply: Reply,
        decision: &Decision,
    ) {
        let changes = (self.changes && decision.is_allowed()) || outcomes::converts_rate(&charges, &reply);
        if changes || decision.is_allowed() {
            self.changes = changes;
            return;
        }
        let is_struck = |(charge, outcome): (&PreparedCharge, &Outcome)| {
            let counts = charge.charge().spec.counts_strikes();
            counts && outcome.denies() && (!outcome.is_penalty() || outcome.lockout().is_some())
        };
        let struck: SmallVec<[bool; 4]> = charges.iter().zip(decision.outcomes()).map(is_struck).collect();
        if struck.contains(&true) {
            let mut struck = struck.into_iter();
            self.epochs.retain(|_| struck.next() == Some(true));
            return;
        }
        self.changes = false;
        // Limits in quota mode deny only if all of them do, which the limits' own outcomes do not show.
        if charges.len() > 1 && charges.iter().any(|charge| charge.charge().spec.is_quota()) {
            return;
        }
        if charges.len() > MAX_LIMITS || reply.len() > MAX_BYTES {
            return;
        }
        self.denials.insert(Denial {
            fingerprint: fingerprint(charges.iter().map(PreparedCharge::charge)),
            epochs: self.epochs.iter().map(|(_, epoch)| *epoch).collect(),
            at: decision.at().as_micros(),
            until: sufficient_until(&charges, decision),
            sent: self.sent,
            received: Instant::now(),
            reply,
            charges,
        });
    }
}

/// Returns the instant (in µs) from which a reply is not sufficient to decide: the reply contains only part of a log,
/// and overrides expire.
fn sufficient_until(charges: &[PreparedCharge], decision: &Decision) -> u64 {
    let at = decision.at().as_micros();
    let logs = decision.outcomes().iter().zip(charges).filter_map(|(outcome, charge)| {
        let is_log = matches!(Codec::of(charge.charge().spec.rule().deciding()), Codec::Log(_));
        outcome.more_after().filter(|_| is_log).map(|after| at.saturating_add(after.as_micros() as u64))
    });
    let overrides = charges.iter().filter_map(PreparedCharge::override_expiry);
    logs.chain(overrides).min().unwrap_or(u64::MAX)
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
