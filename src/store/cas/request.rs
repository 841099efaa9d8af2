//! Decides a request that has its turn: reads its rows, decides on copies, and writes those that have changed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::database::{CompareAndSwap, Database, refunded};
use super::operation::Retries;
use crate::algorithm::KeyState;
use crate::decision::{Charges, Outcome, Purpose, decide};
use crate::error::StoreError;
use crate::key::hash::KeyHasher;
use crate::store::{Answer, Override, OverrideOperation, Store, StoreFuture};
use crate::time::Timestamp;

/// Requests do not wait for each other, and end when their callers give up.
impl<B: CompareAndSwap> Store for Database<Arc<B>> {
    fn hasher(&self) -> KeyHasher {
        self.hasher.get()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let (database, mut charges) = (self.clone(), charges.clone());
        charges.ask_again();
        // What was written is taken back without its block.
        if charges.len() > 1 {
            charges.want_no_blocks();
        }
        StoreFuture::pending(async move {
            let retries = Retries::new(longest_wait)?;
            let written = charges.states().map(|_| None).collect();
            CasRequest { database, charges, purpose, written, denial: None, retries }.decide().await
        })
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let (database, charges) = (self.clone(), charges.clone());
        StoreFuture::pending(async move { database.refund(&charges).await })
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        let database = self.clone();
        let keys = self.keys(charges);
        StoreFuture::pending(async move {
            let mut result = Ok(());
            for key in keys {
                result = result.and(database.backend.delete(&key).await);
            }
            result
        })
    }

    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        let (database, charges) = (self.clone(), charges.clone());
        Some(StoreFuture::pending(async move { database.renew(&charges).await }))
    }

    fn identity(&self) -> u32 {
        self.identity
    }

    /// If a request had to wait for the clock, it is not read again.
    fn now(&self) -> Option<Timestamp> {
        if self.has_remote_clock.load(Ordering::Relaxed) {
            return None;
        }
        match pin!(self.current_time()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(now) => now.ok(),
            Poll::Pending => {
                self.has_remote_clock.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (database, charge) = (self.clone(), charges[0].charge);
        StoreFuture::pending(async move { database.access_override(&charge, operation).await })
    }
}

/// A request under way.
///
/// A request has a row for each limit and each penalty, but the database writes one row at a time. So a request reads
/// all its rows, decides on copies, and writes the rows that have changed, in the order of their keys, as all processes
/// do. A denial changes no row but those of strikes.
///
/// If another process has changed a row meanwhile, the request starts again with fresh rows and the present time.
/// Before it decides, it removes its own changes from the copies. A row that nobody else has changed becomes as it was
/// before, strikes included. In other rows, the charge is refunded. A strike stays, because others have been decided by
/// it, and is not made again. So the request then writes only the rows that the new decision changes: a charge that
/// still stands is not written twice, and if the request is now denied, its charges are taken back.
///
/// A denial stands even if nothing can be written: its strikes do not count then.
struct CasRequest<B> {
    database: Database<Arc<B>>,
    charges: Charges,
    purpose: Purpose,
    /// What the request has written under each of its keys.
    written: Vec<Option<Written>>,
    /// The denial of the last attempt, if its strikes could not be written.
    denial: Option<(Timestamp, Charges)>,
    retries: Retries,
}

/// The change of a row that a request has made.
struct Written {
    /// The charge, unless it is a strike.
    charged: Option<Outcome>,
    before: KeyState,
    after: KeyState,
}

impl<B: CompareAndSwap> CasRequest<B> {
    async fn decide(mut self) -> Result<Answer, StoreError> {
        let decided = self.attempt().await;
        if decided.is_err() {
            self.take_back().await;
            if let Some((at, charges)) = self.denial {
                return Ok(Answer::with_charges(at, charges).valid_until(at));
            }
        }
        decided
    }

    /// Refunds the charges that were written. Those that cannot be refunded stay, as strikes do, and so does one of
    /// which it is unknown whether it was written.
    async fn take_back(&mut self) {
        let written = self.written.iter_mut().filter_map(Option::take);
        let charges: Vec<Outcome> = written.filter_map(|written| written.charged).collect();
        let _ = self.database.refund(&charges).await;
    }

    /// Tries until no other process interferes.
    async fn attempt(&mut self) -> Result<Answer, StoreError> {
        'attempts: loop {
            self.retries.next_attempt().await?;
            let at = self.database.current_time().await?;
            let now = at.as_micros();
            let mut charges = self.charges.clone();
            let (rows, until) = self.database.read(&mut charges, now).await?;
            let had_written = self.written.iter().any(Option::is_some);
            let states: Vec<(usize, bool)> = charges.states().collect();
            for ((row, written), &(position, _)) in rows.iter().zip(&mut self.written).zip(&states) {
                // A strike in a row that others have changed stays.
                if written.take_if(|last| last.charged.is_none() && last.after != row.state).is_some() {
                    self.charges[position].disable_strikes();
                    charges[position].disable_strikes();
                }
            }
            let before: Vec<KeyState> =
                rows.iter().zip(&self.written).map(|(row, written)| without(written, &row.state, now)).collect();
            let mut after = before.clone();
            decide(&mut charges, &mut after, now, self.purpose);
            let is_denied = charges.iter().any(Outcome::denies);
            self.denial = None;
            let mut order: Vec<usize> = (0..rows.len()).filter(|_| self.purpose == Purpose::Take).collect();
            order.sort_unstable_by_key(|index| &rows[*index].key);
            for index in order {
                let (row, found, left) = (&rows[index], &before[index], &after[index]);
                let last = self.written[index].take();
                if *left != row.state {
                    self.database.writes.store(true, Ordering::Relaxed);
                    let write = self.database.write(row, left, at);
                    let is_written = match is_denied {
                        true => self.retries.wait(write).await.unwrap_or_else(Err),
                        false => write.await,
                    };
                    if !matches!(is_written, Ok(true)) {
                        self.denial = is_denied.then(|| (at, without_strikes(&charges, before.clone(), now)));
                        is_written?;
                        // Another process has changed it.
                        self.written[index] = last;
                        continue 'attempts;
                    }
                }
                if left != found {
                    let (position, is_penalty) = states[index];
                    let charged = (!is_penalty).then(|| charges[position].clone());
                    let (before, after) = (found.clone(), left.clone());
                    self.written[index] = Some(Written { charged, before, after });
                }
            }
            // A denial is not remembered if others may have been denied because of a charge that was taken back.
            let until = if had_written { now } else { until.min(Timestamp::MAX.as_micros()) };
            return Ok(Answer::with_charges(at, charges).valid_until(Timestamp::from_micros(until)));
        }
    }
}

/// Returns denied charges as answered for these states if no strike counts.
fn without_strikes(charges: &Charges, mut states: Vec<KeyState>, now: u64) -> Charges {
    let mut charges = charges.clone();
    charges.iter_mut().for_each(|outcome| *outcome = outcome.unanswered());
    decide(&mut charges, &mut states, now, Purpose::Peek);
    charges
}

/// Returns the state of a row without what the request has written.
fn without(written: &Option<Written>, found: &KeyState, now: u64) -> KeyState {
    match written {
        Some(written) if written.after == *found => written.before.clone(),
        Some(Written { charged: Some(charged), .. }) => refunded(found, charged, now),
        Some(_) | None => found.clone(),
    }
}
