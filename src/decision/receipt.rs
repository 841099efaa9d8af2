//! Receipts of charges.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::decided_by::DecidedBy;
use super::outcome::Outcome;
use crate::limit_spec::LimitSpec;

/// The record of the charges of a decision. It can be refunded exactly and once.
///
/// A refund returns only the part of the charge that still counts: it never leaves more tokens than the limit has,
/// never moves a reset, and never affects a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped refunds nothing: pass it to `refund`"]
pub struct Receipt {
    /// The part of the limiter that made the charge.
    pub(crate) by: DecidedBy,
    pub(super) charged: SmallVec<[Outcome; 1]>,
    /// The limits that had another size for the request.
    pub(super) resized: Option<Box<[Arc<LimitSpec>]>>,
}

impl Receipt {
    /// Creates the receipt of one charge. `resized` is the limit, if it had another size.
    pub(crate) fn new(by: DecidedBy, charged: Outcome, resized: Option<Arc<LimitSpec>>) -> Self {
        Self { by, charged: smallvec![charged], resized: resized.map(|spec| [spec].into()) }
    }

    /// Adds another charge, of another limit or in the same size.
    pub(crate) fn push(&mut self, charged: Outcome, resized: Option<Arc<LimitSpec>>) {
        let is_first = self.charged.iter().all(|known| known.limit() != charged.limit());
        if let Some(spec) = resized.filter(|_| is_first) {
            self.resized = Some([self.resized(), &[spec]].concat().into());
        }
        self.charged.push(charged);
    }

    /// Returns the outcomes that were charged.
    pub(crate) fn charged(&self) -> &[Outcome] {
        &self.charged
    }

    /// Returns the limits that had another size for the request.
    pub(crate) fn resized(&self) -> &[Arc<LimitSpec>] {
        self.resized.as_deref().unwrap_or_default()
    }

    /// Returns whether there is nothing to refund.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged.is_empty()
    }
}
