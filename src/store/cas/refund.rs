//! Refunds charges, one key after the other.

use super::backend::CompareAndSwap;
use super::database::Database;
use super::entry::Entry;
use super::retry::Retries;
use crate::charge::{Charge, Refund};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::limit_spec;

/// Refunds charges, as far as they still count. Tries all of them, and returns the first error.
pub(super) async fn refund_all<'a, B: CompareAndSwap>(
    database: &Database<B>,
    refunds: impl IntoIterator<Item = Refund<'a>>,
) -> Result<(), StoreError> {
    let mut result = Ok(());
    for charged in refunds {
        result = result.and(refund(database, &charged).await);
    }
    result
}

/// Refunds the charges of a decision.
pub(super) async fn refund_decision<B: CompareAndSwap>(
    database: &Database<B>,
    charges: &[Charge<'_>],
    decision: &Decision,
) -> Result<(), StoreError> {
    if !decision.is_charged() {
        return Ok(());
    }
    let charged = charges.iter().zip(decision.outcomes()).filter(|(_, outcome)| outcome.is_allowed());
    let refunds = charged.filter(|(_, outcome)| outcome.cost() > 0).map(|(charge, outcome)| {
        let spec = limit_spec::find(outcome.limit(), decision.resized()).unwrap_or(charge.spec);
        Refund { spec, key: charge.key, cost: outcome.cost(), mark: outcome.mark }
    });
    refund_all(database, refunds.collect::<Vec<_>>()).await
}

async fn refund<B: CompareAndSwap>(database: &Database<B>, refund: &Refund<'_>) -> Result<(), StoreError> {
    let &Refund { spec, key, cost, mark } = refund;
    let _change = database.change(spec, key);
    let charge = Charge { spec, key, cost };
    let key = database.key(spec, key);
    let mut retries = Retries::new();
    loop {
        retries.next_attempt().await?;
        let at = database.now().await?;
        let found = database.backend.get(&key).await?;
        let mut entry = Entry::new(key.clone(), found, &charge)?;
        entry.refund(mark, at, &charge);
        if !entry.has_changed() || database.write(&key, entry.version, &entry.after, at).await? {
            return Ok(());
        }
    }
}
