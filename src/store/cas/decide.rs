//! Decides requests, and refunds their charges.
//!
//! A request has a row for each limit and each penalty, but the database writes one row at a time. So a request reads
//! all its rows, decides on copies, and writes the rows that have changed, in the order of their keys, as all processes
//! do. A denial changes no row but those of strikes.
//!
//! If another process has changed a row meanwhile, the request starts again with fresh rows and the present time. It
//! takes what it has written out of the copies before it decides: a row that is still as the request has left it
//! becomes as it was before, strikes included; from another one, the charge is refunded, and a strike stays, because
//! others have been decided by it. So the rows that are written next are those to which the new decision makes a
//! difference: a charge that still stands is not written twice, and if the request is now denied, its charges are taken
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{mem, slice};

use super::database::{CompareAndSwap, Database, Row};
use super::operation::{Retries, complete};
use crate::algorithm::KeyState;
use crate::error::StoreError;
use crate::store::decision::{Cell, decide};
use crate::store::{Answer, Purpose};
use crate::time::Timestamp;

/// Decides a request. One of several limits is completed if its caller gives up, and then taken back.
pub(super) async fn decide_request<B: CompareAndSwap>(
    database: Database<Arc<B>>,
    cells: Vec<Cell>,
    purpose: Purpose,
) -> Result<Answer, StoreError> {
    let writes = Arc::new(AtomicBool::new(false));
    let limits = cells.iter().filter(|cell| !cell.is_of_penalty()).count();
    let written = cells.iter().map(|_| None).collect();
    let request = Request { database, cells, purpose, writes: writes.clone(), written, retries: Retries::new() };
    let (answer, _) = if purpose == Purpose::Take && limits > 1 {
        complete(request.decide_in_turn(), writes, async |(_, unused)| Request::take_back(unused).await).await?
    } else {
        request.decide_in_turn().await?
    };
    Ok(answer)
}

/// A request under way.
struct Request<B> {
    database: Database<Arc<B>>,
    cells: Vec<Cell>,
    purpose: Purpose,
    /// Set before the first write.
    writes: Arc<AtomicBool>,
    /// What the request has written under each of its keys.
    written: Vec<Option<Written>>,
    retries: Retries,
}

/// The change of a row that a request has made.
struct Written {
    cell: Cell,
    before: KeyState,
    after: KeyState,
}

impl<B: CompareAndSwap> Request<B> {
    /// Answers the cells when no other request of this process for one of their keys does.
    async fn decide_in_turn(mut self) -> Result<(Answer, Self), StoreError> {
        // Requests that write nothing need no turn.
        let keys = self.cells.iter().filter(|_| self.purpose == Purpose::Take).map(Cell::key);
        let locks = self.retries.wait(self.database.locks.lock(keys)).await;
        // Of the requests that waited for their turn, or waited too long, one may have been denied meanwhile.
        if let Some(at) = self.database.remembered(&mut self.cells) {
            return Ok((Answer::with_cells(at, mem::take(&mut self.cells)).from_memory(), self));
        }
        let _locks = locks?;
        match self.decide().await {
            Ok(at) => Ok((Answer::with_cells(at, mem::take(&mut self.cells)), self)),
            Err(error) => {
                self.take_back().await;
                Err(error)
            }
        }
    }

    /// Refunds the charges that were written. Those that cannot be refunded stay, as strikes do, and so does one of
    /// which it is unknown whether it was written.
    async fn take_back(self) {
        let written: Vec<Cell> = self.written.into_iter().flatten().map(|written| written.cell).collect();
        let _ = refund_all(&self.database, &written).await;
    }

    async fn decide(&mut self) -> Result<Timestamp, StoreError> {
        let takes = self.purpose == Purpose::Take;
        let change = self.database.denials.begin(&self.cells, self.purpose);
        loop {
            self.retries.next_attempt().await?;
            let at = self.database.now().await?;
            let now = at.as_micros();
            let mut cells = self.cells.clone();
            let (rows, until) = self.database.read(&mut cells, now).await?;
            let before: Vec<KeyState> =
                rows.iter().zip(&self.written).map(|(row, written)| without(written, &row.state, now)).collect();
            let mut after = before.clone();
            decide(&mut cells, &mut after[..], now, self.purpose);
            let had_written = self.written.iter().any(Option::is_some);
            if takes && !self.write(&rows, &before, &after, &cells, at).await? {
                continue;
            }
            // Others may have been denied because of a charge that was taken back.
            if !had_written {
                change.decided(&cells, now, until);
            }
            self.cells = cells;
            return Ok(at);
        }
    }

    /// Writes the states that have changed. Stops at the first one that another process has changed, and returns
    /// `false`.
    async fn write(
        &mut self,
        rows: &[Row],
        before: &[KeyState],
        after: &[KeyState],
        cells: &[Cell],
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|index| &rows[*index].key);
        for index in order {
            let (row, before, after) = (&rows[index], &before[index], &after[index]);
            let last = self.written[index].take();
            if *after != row.state {
                self.writes.store(true, Ordering::Relaxed);
                if !self.database.write(row, after, at).await? {
                    self.written[index] = last;
                    return Ok(false);
                }
            }
            if after != before {
                let (cell, before, after) = (cells[index].clone(), before.clone(), after.clone());
                self.written[index] = Some(Written { cell, before, after });
            }
        }
        Ok(true)
    }
}

/// Returns the state of a row without what the request has written.
fn without(written: &Option<Written>, found: &KeyState, now: u64) -> KeyState {
    match written {
        Some(written) if written.after == *found => written.before.clone(),
        Some(written) => refunded(found, &written.cell, now),
        None => found.clone(),
    }
}

/// Returns the state after the refund of a cell's charge.
fn refunded(state: &KeyState, cell: &Cell, now: u64) -> KeyState {
    let mut state = state.clone();
    state.refund(cell.algorithm(), cell.mark, now, cell.cost());
    state
}

/// Refunds charges, as far as they still count. Tries all of them, and returns the first error.
pub(super) async fn refund_all<B: CompareAndSwap>(
    database: &Database<Arc<B>>,
    cells: &[Cell],
) -> Result<(), StoreError> {
    let mut result = Ok(());
    for cell in cells {
        result = result.and(refund(database, cell).await);
    }
    result
}

async fn refund<B: CompareAndSwap>(database: &Database<Arc<B>>, cell: &Cell) -> Result<(), StoreError> {
    let _change = database.denials.begin(slice::from_ref(cell), Purpose::Take);
    let mut retries = Retries::new();
    loop {
        retries.next_attempt().await?;
        let at = database.now().await?;
        let row = database.row(cell).await?;
        let state = refunded(&row.state, cell, at.as_micros());
        if state == row.state || database.write(&row, &state, at).await? {
            return Ok(());
        }
    }
}
