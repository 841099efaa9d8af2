//! The charges in flight: requests that their responses may still refund.
//!
//! A denial is a strike only if the limit would deny the request without its charges in flight, too. So valid requests
//! that fill a limit for a moment lock nobody out. A process knows its charges in flight for limits that have a penalty
//! and settle by the response.
//!
//! Whether a strike is due is known after the decision. So a request is decided without strikes at first. If a strike
//! seems due, the request waits until no other request is decided for the same key. It is then decided again without
//! strikes, because charges may have been refunded meanwhile, and at last with the strikes that are due.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::RwLock;
use tokio::time::Instant;

use super::{Deadline, Engine, SlotGuard};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose};
use crate::error::StoreError;
use crate::store::KeyMap;

/// A charge that is in flight until this is dropped.
pub(crate) struct ChargeInFlight {
    pub(crate) limit: usize,
    charged: Mutex<Outcome>,
    _key: Arc<Key>,
}

/// The charges of one request.
pub(crate) type ChargesInFlight = Vec<Arc<ChargeInFlight>>;

/// A key of a limit, while it has charges in flight or is decided.
#[derive(Default)]
struct Key {
    /// Shared by decisions without strikes.
    turns: RwLock<()>,
    charges: Mutex<Vec<Weak<ChargeInFlight>>>,
}

/// By the identity of the store, and the fingerprint.
static KEYS: LazyLock<KeyMap<(u32, u128), Key>> = LazyLock::new(KeyMap::default);

impl Engine {
    /// Decides a new request as [`hold`](Self::hold) does. Also returns the charges that are in flight from now on.
    pub(crate) async fn hold_in_flight(
        self: &Arc<Self>,
        charges: Charges,
    ) -> Result<(SlotGuard, ChargesInFlight), StoreError> {
        if !self.limits.tracks_in_flight {
            return Ok((self.hold(charges).await?, ChargesInFlight::default()));
        }
        let (engine, since) = (self.clone(), Instant::now());
        self.complete_with_slots(async move {
            let (decision, in_flight) = engine.charge(DecidedBy::Store, charges, engine.deadline()).await?;
            Ok((SlotGuard::of(&engine, decision, since), in_flight))
        })
        .await
    }

    /// Takes the charges of a request where an earlier decision about it was made. Also returns those that are in flight
    /// from now on. If other requests for the same key take longer than the deadline, a denial is no strike.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        by: DecidedBy,
        mut charges: Charges,
        deadline: Deadline,
    ) -> Result<(Decision, ChargesInFlight), StoreError> {
        let began = self.start_recording(Purpose::Take);
        let is_tracked =
            |asked: &&Outcome| asked.cost > 0 && asked.penalty().is_some() && self.limits[asked.limit()].is_settled();
        let key = |asked: &Outcome| ((self.limits.store, asked.fingerprint()), asked.limit());
        let mut keys: Vec<_> = charges.iter().filter(is_tracked).map(key).collect();
        if keys.is_empty() {
            return Ok((self.decide_by(by, charges, Purpose::Take, began, deadline).await?, Vec::new()));
        }
        // In ascending order, so that no two requests wait for each other.
        keys.sort_unstable();
        let keys: Vec<(usize, Arc<Key>)> = keys.into_iter().map(|(key, limit)| (limit, KEYS.of(key))).collect();
        let deadline = deadline.begin();
        let mut shared = Vec::new();
        for (_, key) in &keys {
            shared.extend(deadline.limit(key.turns.read()).await);
        }
        let mut asked = charges.clone();
        charges.disable_strikes();
        let decide = |charges| self.decide_by(by, charges, Purpose::Take, None, deadline);
        let mut decision = decide(charges.clone()).await?;
        if has_due_strikes(&mut asked.clone(), &decision, &in_flight(&keys, &decision)) {
            shared.clear();
            let strike = async {
                let mut exclusive = Vec::new();
                for (_, key) in &keys {
                    exclusive.push(key.turns.write().await);
                }
                let in_flight = in_flight(&keys, &decision);
                let again = decide(charges).await?;
                if has_due_strikes(&mut asked, &again, &in_flight) { decide(asked).await } else { Ok(again) }
            };
            // If the store is slow or fails meanwhile, the denial stands.
            if let Some(Ok(again)) = deadline.limit(strike).await
                && again.decided_by().is_store() == decision.decided_by().is_store()
            {
                decision = again;
            }
        }
        self.record(began, &decision);
        let charged = |(limit, key): (usize, Arc<Key>)| {
            let outcome = decision.outcome(limit).filter(|_| decision.is_charged())?;
            let charge = Arc::new(ChargeInFlight { limit, charged: Mutex::new(outcome.clone()), _key: key.clone() });
            let mut charges = lock(&key.charges);
            charges.retain(|charge| charge.strong_count() > 0);
            charges.push(Arc::downgrade(&charge));
            Some(charge)
        };
        let charged = keys.iter().cloned().filter_map(charged).collect();
        Ok((decision, charged))
    }
}

/// Returns the tokens in flight for each limit, as far as they still count when a request is denied.
fn in_flight(keys: &[(usize, Arc<Key>)], denied: &Decision) -> Vec<(usize, u64)> {
    let tokens = |(limit, key): &(usize, Arc<Key>)| {
        let denied = denied.outcome(*limit)?;
        let charges = lock(&key.charges);
        let counted = charges.iter().filter_map(Weak::upgrade).map(|charge| lock(&charge.charged).counted_at(denied));
        Some((*limit, counted.sum()))
    };
    keys.iter().filter_map(tokens).collect()
}

/// Returns whether strikes are due for a denied request, and disables those that are not.
fn has_due_strikes(asked: &mut Charges, denied: &Decision, in_flight: &[(usize, u64)]) -> bool {
    for (asked, denied) in asked.iter_mut().zip(denied.outcomes()) {
        let tokens = in_flight.iter().find(|(limit, _)| *limit == asked.limit()).map_or(0, |(_, tokens)| *tokens);
        if !denied.denies_without(tokens) {
            asked.disable_strikes();
        }
    }
    asked.iter().any(Outcome::is_strike)
}

impl ChargeInFlight {
    /// Lowers the charge to at most so many tokens. Returns its tokens.
    pub(crate) fn lower(&self, most: u64) -> u64 {
        let cost = &mut lock(&self.charged).charge.cost;
        *cost = most.min(*cost);
        *cost
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
