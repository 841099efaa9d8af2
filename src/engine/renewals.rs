//! Renews the slots that a process holds in a database.
//!
//! A slot is a token in a bucket of a sliding window, and expires with the bucket. So its holder moves it to the present
//! bucket before that. All slots of a key and a bucket move together, and those of many keys share a call.
//!
//! A call whose end is unknown may have moved them or not. They are then charged again, and what the call has charged
//! expires, so that limits are stricter for a while, never laxer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Engine;
use super::guard::Deadline;
use crate::algorithm::CompactState;
use crate::decision::{Charges, DecidedBy, Outcome};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::store::{Answer, StoreFuture};

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
            let mut nodes = JoinSet::new();
            for calls in self.by_node(due) {
                nodes.spawn(self.clone().renew_on_node(calls, time_to_live));
            }
            let mut are_renewed = true;
            while let Some(renewed) = nodes.join_next().await {
                // A recorder may have panicked.
                are_renewed &= renewed.unwrap_or(false);
            }
            let next = if are_renewed { time_to_live / 4 } else { time_to_live / 16 };
            pause = next.saturating_sub(began.elapsed());
        }
    }

    /// Renews slots of a node by one call after the other, so that decisions wait for one of them at most. If one fails,
    /// the others are not made. Returns whether all slots were renewed.
    async fn renew_on_node(self: Arc<Self>, calls: Vec<Charges>, time_to_live: Duration) -> bool {
        let mut is_renewed = true;
        for sent in calls {
            let at = Instant::now();
            let mut renewed = sent.clone();
            let result = match is_renewed {
                true => self.call_to_renew(&sent, time_to_live).await.map(|answer| answer.finish(&mut renewed)),
                false => Err(StoreError::breaker_open(None)),
            };
            is_renewed = result.is_ok();
            let released = self.complete_renewal(&sent, result.map(|_| renewed), at);
            self.refund_slots(DecidedBy::Store, released);
        }
        is_renewed
    }

    /// Calls the store, even if a breaker is open: its pause might outlast the slots. The call is its trial then.
    fn call_to_renew(self: &Arc<Self>, slots: &Charges, time_to_live: Duration) -> StoreFuture<Answer> {
        let call = self.guard.breakers.begin();
        let answer =
            self.guard.store.renew(slots).unwrap_or_else(|| StoreFuture::ready(Err(StoreError::not_supported())));
        let slots = slots.clone();
        self.follow(answer, Deadline::of(time_to_live / 8), move |engine, answer, by| {
            engine.end(&call, &slots, answer, by, |_| true)
        })
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

    /// Divides slots into calls, of one node each. Returns the calls of each node.
    fn by_node(&self, due: Vec<Outcome>) -> impl Iterator<Item = Vec<Charges>> {
        let mut nodes = HashMap::<_, Vec<Charges>>::new();
        for outcome in due {
            let calls = nodes.entry(self.guard.store.node(outcome.key())).or_default();
            if calls.last().is_none_or(|slots| slots.len() == MAX_SLOTS) {
                calls.push(self.limits.no_charges());
            }
            calls.last_mut().expect("a call").push(outcome);
        }
        nodes.into_values()
    }
}
