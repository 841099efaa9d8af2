//! Renews the slots that a process holds in a database.
//!
//! A slot is a token in a bucket of a sliding window, and expires with the bucket. So its holder moves it to the present
//! bucket before that. All slots of a key and a bucket move together, and those of many keys share a call.
//!
//! A call whose end is unknown may have moved them or not. They are then charged again, and what the call has charged
//! expires, so that limits are stricter for a while, never laxer.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Engine;
use super::guard::Deadline;
use crate::algorithm::CompactState;
use crate::decision::{Charges, DecidedBy, Outcome};
use crate::error::{Node, StoreError};
use crate::recorder::Event;
use crate::store::StoreFuture;

/// The most keys whose slots one request to the store renews. If it fails, it is unknown whether these were renewed.
const MAX_SLOTS: usize = 64;

impl Engine {
    /// Holds slots that were taken since an instant, and renews them from now on.
    pub(super) fn hold_renewed(self: &Arc<Self>, taken: &[Outcome], since: Instant) {
        self.renewed.hold(taken, since, |runtime, span| runtime.spawn(self.clone().renew(span)).abort_handle());
    }

    /// Renews the slots of one time to live, in µs, until this process holds none.
    async fn renew(self: Arc<Self>, span: u64) {
        let time_to_live = Duration::from_micros(span);
        let mut pause = time_to_live / 4;
        loop {
            sleep(pause).await;
            let began = Instant::now();
            let Some(due) = self.renewed.due(time_to_live) else { return };
            let mut calls = JoinSet::new();
            for sent in self.by_node(due) {
                let engine = self.clone();
                calls.spawn(async move {
                    let call = engine.call(sent.clone(), Deadline::of(time_to_live / 8), |store, slots| {
                        store.renew(slots).unwrap_or_else(|| StoreFuture::ready(Err(StoreError::not_supported())))
                    });
                    let mut renewed = sent.clone();
                    let result = call.await.map(|answer| answer.finish(&mut renewed));
                    let is_renewed = result.is_ok();
                    let released = engine.complete_renewal(&sent, result.map(|_| renewed), began);
                    engine.refund_slots(DecidedBy::Store, released);
                    is_renewed
                });
            }
            let are_renewed = calls.join_all().await.into_iter().all(|is_renewed| is_renewed);
            let next = if are_renewed { time_to_live / 4 } else { time_to_live / 16 };
            pause = next.saturating_sub(began.elapsed());
        }
    }

    /// Ends a renewal that began `at` an instant. Returns the slots that were released meanwhile, to be refunded.
    fn complete_renewal(&self, sent: &Charges, renewed: Result<Charges, StoreError>, at: Instant) -> Charges {
        let mut released = self.limits.no_charges();
        for (position, outcome) in sent.iter().enumerate() {
            let mark = match &renewed {
                Ok(renewed) => renewed[position].slot_mark(),
                Err(error) if error.was_not_sent() => outcome.mark,
                Err(_) => CompactState::UNUSED,
            };
            let Some((expired, ended)) = self.renewed.complete(outcome, mark, at) else { continue };
            if expired > 0 {
                let limit = self.limits[outcome.limit()].name();
                self.report_event(&Event::SlotsExpired { limit, slots: expired });
            }
            ended.into_iter().for_each(|ended| released.push(ended));
        }
        released
    }

    /// Divides slots into calls, of one node each.
    fn by_node(&self, due: Vec<Outcome>) -> Vec<Charges> {
        let mut calls = Vec::<(Option<Node>, Charges)>::new();
        for outcome in due {
            let node = self.guard.store.node(outcome.key());
            match calls.iter_mut().find(|(of, slots)| *of == node && slots.len() < MAX_SLOTS) {
                Some((_, slots)) => slots.push(outcome),
                None => {
                    let mut slots = self.limits.no_charges();
                    slots.push(outcome);
                    calls.push((node, slots));
                }
            }
        }
        calls.into_iter().map(|(_, slots)| slots).collect()
    }
}
