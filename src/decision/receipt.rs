//! Receipts of charges.

use super::cell::Cells;
use super::decided_by::DecidedBy;

/// The record of the charges of a decision. It can be refunded exactly and once.
///
/// A refund returns only the part of the charge that still counts: it never leaves more tokens than the limit has,
/// never moves a reset, and never affects a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped refunds nothing: pass it to `refund`"]
pub struct Receipt {
    /// The part of the limiter that made the charge.
    pub(crate) by: DecidedBy,
    pub(crate) charged: Cells,
}

impl Receipt {
    /// Returns whether there is nothing to refund.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged.is_empty()
    }
}
