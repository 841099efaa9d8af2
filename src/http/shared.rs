//! What all services of a limiter share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::headers::Headers;
use super::lists::Lists;
use super::wording::Wording;
use crate::cost::Cost;
use crate::resilience::Guard;

/// All that a limiter's services share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) guard: Arc<Guard>,
    pub(super) lists: Lists,
    pub(super) cost: Cost,
    pub(super) headers: Headers,
    pub(super) wording: Wording,
    /// Whether handlers may charge and give back.
    pub(super) permits: bool,
    pub(super) identity: Arc<Identity>,
    pub(super) is_used: IsUsed,
}

/// What makes a limiter the same one on a router and on its routes.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// How many variants of it, which charge differently, are in use.
    variants: AtomicUsize,
    /// It was reported that the server does not provide a key.
    pub(super) has_reported: AtomicBool,
}

/// Whether a variant of a limiter is in use. A copy is another variant.
#[derive(Debug, Default)]
pub(super) struct IsUsed(AtomicBool);

impl Clone for IsUsed {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Shared {
    /// Notes that a service was made of this variant.
    pub(super) fn note_use(&self) {
        if !self.is_used.0.swap(true, Ordering::Relaxed) {
            self.identity.variants.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a request that goes on may be charged more or less later: then a note goes with it of
    /// what it was charged.
    pub(super) fn keeps_a_ledger(&self) -> bool {
        self.permits || self.has_variants() || self.guard.limits().look_at_responses()
    }

    /// Whether a request may meet this limiter more than once, at different costs.
    pub(super) fn has_variants(&self) -> bool {
        self.identity.variants.load(Ordering::Relaxed) > 1
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("guard", &self.guard)
            .field("lists", &self.lists)
            .field("cost", &self.cost)
            .field("wording", &self.wording)
            .finish_non_exhaustive()
    }
}
