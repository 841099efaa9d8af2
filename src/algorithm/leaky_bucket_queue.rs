//! A bucket that leaks: the queue.

use super::drain::Drain;
use super::shape::{bucket_constructors, decided_by};
use super::{Room, Standing};
use crate::record::Record;

/// A queue in which `capacity` tokens may wait, and which lets `amount` go on evenly per
/// `interval`, first in, first out. Who finds it full is denied; who finds it empty goes on at
/// once.
///
/// A delayed request waits in its own future, which holds the service that was ready for it: put a
/// limit on concurrency further out, or its places are taken by those who wait. If it is given up
/// while it waits (the client hangs up), its slot is given back if no other request has queued behind
/// it. If one has, the slot passes unused: the others keep the instants that they were promised.
///
/// Where its rate is changed, those who wait go on when they were told, and whoever comes finds as many in
/// the queue as there were, at the new rate: at a faster one, the first of them may go on before the last
/// of those who waited. A slot that was given out before can then no longer be given back.
///
/// - **Admits at most**: `capacity` + 1 + `amount` · span / interval in any span, of which no two
///   go on closer together than interval / `amount`.
/// - **Remembers**: 16 bytes a key: the instant at which the next slot is free.
/// - **Choose it when** what lies behind wants a steady stream: to shape traffic to a constant
///   rate rather than cut it off, on servers and on clients.
///
/// ```
/// use tower_ratelimit::LeakyBucketQueue;
///
/// // One goes on each second, five may wait.
/// let queue = LeakyBucketQueue::per_second(1).waiting(5);
/// # let _ = queue;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucketQueue {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
}

bucket_constructors!(LeakyBucketQueue, waiting, "waiting at most", "go on");

impl LeakyBucketQueue {
    const fn of(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval }
    }

    /// Those that wait, and the one that goes on.
    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.capacity) + 1
    }

    pub(super) fn window(&self) -> u128 {
        self.queue().0.span()
    }

    pub(super) fn share(self, parts: u32) -> Self {
        self.even_share(parts)
    }

    pub(super) fn queue(&self) -> Queue {
        Queue(Drain::new(self.capacity(), self.amount, self.interval))
    }
}

/// A drain of which each request waits for all that came before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue(pub(crate) Drain);

decided_by!(Queue, itself over Record);

impl Queue {
    #[inline(always)]
    fn itself(&self) -> &Self {
        self
    }

    #[inline(always)]
    pub(super) fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        match self.0.peek(record, now, cost) {
            // Who takes no slot waits for none.
            Room::Now { over, .. } if cost > 0 => Room::Now { delay: self.0.backlog(record, now), over },
            room => room,
        }
    }

    #[inline(always)]
    pub(super) fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        self.take(record, now, cost).0
    }

    #[inline(always)]
    pub(super) fn take(&self, record: &mut Record, now: u64, cost: u64) -> (Record, Standing) {
        let (_, standing) = self.0.take(record, now, cost);
        (*record, standing)
    }

    #[inline(always)]
    pub(super) fn take_at_once(&self, record: &mut Record, now: u64, cost: u64) -> Option<(Room, Record, Standing)> {
        let delay = self.0.backlog(record, now);
        let (_, _, standing) = self.0.take_at_once(record, now, cost)?;
        Some((Room::Now { delay, over: false }, *record, standing))
    }

    #[inline(always)]
    pub(super) fn standing(&self, record: &Record, now: u64) -> Standing {
        self.0.standing(record, now)
    }

    #[inline(always)]
    pub(super) fn adopt(&self, record: &mut Record, now: u64) {
        self.0.adopt(record, now);
    }

    pub(super) fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        // Requests behind this one have been told when they go on: only the last can leave.
        if self.0.is_same(record, &mark) {
            self.0.refund_last(record, now, cost);
        }
    }
}
