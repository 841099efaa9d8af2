//! Proof of what was charged.

use std::sync::Arc;

use super::DecidedBy;
use super::outcome::Outcome;
use super::outcomes::Outcomes;
use crate::limit_spec::LimitSpec;

/// Proof of what a request was charged, and when: what can be given back, exactly and once.
///
/// A refund gives back what of the charge still counts, and nothing else: it never banks credit,
/// never moves a reset, never touches a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped gives nothing back: pass it to `refund`"]
pub struct Receipt {
    /// Who was paid.
    pub(crate) by: DecidedBy,
    pub(super) charged: Outcomes,
}

impl Receipt {
    pub(crate) fn of(by: DecidedBy, charged: Outcome) -> Self {
        Self { by, charged: Outcomes::One(charged) }
    }

    /// Adds what was charged besides, by the same.
    pub(crate) fn push(&mut self, charged: Outcome) {
        self.charged.push(charged);
    }

    /// Notes which limits were of another size for this request, if any.
    pub(crate) fn overridden(self, overridden: &[Arc<LimitSpec>]) -> Self {
        if overridden.is_empty() {
            return self;
        }
        Self { charged: self.charged.overridden(overridden), ..self }
    }

    /// What was charged, by all limits that it was charged from.
    pub(crate) fn charged(&self) -> &[Outcome] {
        self.charged.as_slice()
    }

    /// The spec of all limits that were of another size for this request.
    pub(crate) fn all_overridden(&self) -> &[Arc<LimitSpec>] {
        self.charged.all_overridden()
    }

    /// Whether there is nothing to give back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged().is_empty()
    }
}
