//! Lets the script decide the cells of one slot, and derives the answers from the states in its reply.

use smallvec::SmallVec;

use crate::algorithm::{KeyState, Kind};
use crate::decision::Cell;
use crate::store::Purpose;
use crate::store::StoredOverride;
use crate::store::decide::decide;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Reply, Request, Task, encode_clock, state};
use crate::store::redis::store::RedisStore;

pub(super) const INVALID_OVERRIDE: Fault = Fault::Reply("an invalid override");
const NO_STATE: Fault = Fault::Reply("expected a state");
const INVALID_STATE: Fault = Fault::Reply("an invalid state");

/// The maximum number of round trips that fail because Redis' clock is in none of the calendar windows of the request:
/// two, if Redis' clock is set in between.
const MAX_CLOCK_CORRECTIONS: usize = 2;

impl RedisStore {
    /// Lets the script decide cells, and fills in their answers. If Redis' clock is in another calendar window, the script
    /// decides nothing, and this corrects and repeats the request. Returns the instant of the decision, and that from
    /// which other overrides may apply, in µs.
    pub(super) async fn ask(&self, task: Task, purpose: Purpose, cells: &mut [Cell]) -> Result<(u64, u64), Fault> {
        let clock = self.test_clock();
        let has_calendar = cells.iter().any(|cell| matches!(cell.algorithm().kind, Kind::CalendarWindow(_)));
        let mut now = if has_calendar { clock.unwrap_or_else(|| self.local_now()) } else { 0 };
        let mut corrections = 0..MAX_CLOCK_CORRECTIONS;
        loop {
            let request = Request::decide(&self.prefix, task, now, cells);
            match self.deployment.ask(clock.map(encode_clock), request).await {
                Ok((at, reply)) => return Ok((at, answer(task, purpose, cells, at, &reply)?)),
                Err(fault) => match fault.redis_clock().filter(|_| corrections.next().is_some()) {
                    Some(redis_clock) => now = redis_clock,
                    None => return Err(fault),
                },
            }
        }
    }
}

/// Fills in the answers of cells from the reply of the instant `now` (in µs), by the same algorithms as other stores.
/// Returns the instant (in µs) from which other overrides may apply.
pub(in crate::store::redis) fn answer(
    task: Task,
    purpose: Purpose,
    cells: &mut [Cell],
    now: u64,
    reply: &Reply,
) -> Result<u64, Fault> {
    let mut found = reply.states();
    let mut states: SmallVec<[KeyState; 2]> = SmallVec::new();
    let mut until = u64::MAX;
    for cell in &mut *cells {
        if cell.is_overridable()
            && let Some(StoredOverride { expires_at, size }) = next_override(&mut found)?
        {
            until = until.min(expires_at.unwrap_or(u64::MAX));
            if !cell.resize(size) {
                return Err(INVALID_OVERRIDE);
            }
        }
        let state = found.next().ok_or(NO_STATE)?;
        states.push(state::decode_key(cell.algorithm(), state).ok_or(INVALID_STATE)?);
    }
    if found.next().is_some() {
        return Err(Fault::Reply("another number of keys"));
    }
    let charges_nothing = task == Task::PeekWithStrikes && reply.is_allowed();
    decide(cells, &mut states[..], now, if charges_nothing { Purpose::Peek } else { purpose });
    if cells.iter().any(Cell::denies) == reply.is_allowed() {
        return Err(Fault::Reply("a verdict that contradicts its states"));
    }
    Ok(until)
}

/// Takes the next of the states in a reply as an override. It is empty if there is none.
pub(super) fn next_override<'a>(states: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<StoredOverride>, Fault> {
    let state = states.next().ok_or(NO_STATE)?;
    if state.is_empty() {
        return Ok(None);
    }
    let state = state::decode(state).ok_or(INVALID_OVERRIDE)?;
    let (expires_at, size) = (state.expires_at, [state.detail as u32, (state.detail >> 32) as u32]);
    Ok(Some(StoredOverride { expires_at: (expires_at > 0).then_some(expires_at), size }))
}
