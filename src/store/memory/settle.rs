//! What a limit does with the entry of a key, whichever limit and table it is.

use super::table::{Place, Rank, Slot, Table};
use crate::algorithm::{Exact, Room};
use crate::decision::{Decision, Outcome};
use crate::record::Record;
use crate::store::Charge;
use crate::time::Timestamp;

/// Decides a charge that is alone, of a key that is known, at the price of one look-up.
// Not inlined, so that each writes its decision where it stays: to copy what was written a moment ago
// stalls the processor.
#[inline(never)]
pub(super) fn settle<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    place: usize,
    charge: &Charge<'_>,
    at: Timestamp,
) -> Decision {
    settle_at(table, rule, place, charge, at.as_micros(), |outcome| Decision::of(at, true, outcome))
}

/// Takes one of several charges, which has room, of a key that is known.
#[inline(never)]
pub(super) fn take_at<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
) -> Outcome {
    settle_at(table, rule, place, charge, now, |outcome| outcome)
}

/// Takes one of several charges of a key that is there, if it has room, and writes what comes of it where it stays.
#[inline(never)]
pub(super) fn take_known(
    table: &mut Table<Record>,
    rule: &impl Exact<Record>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
    told: &mut Outcome,
) -> bool {
    settle_at(table, rule, place, charge, now, |outcome| {
        *told = outcome;
        told.is_allowed()
    })
}

/// Takes a charge of a key that is known, if it has room.
#[inline(always)]
fn settle_at<S: Slot, T>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
    tell: impl FnOnce(Outcome) -> T,
) -> T {
    let (state, rank) = table.entry_mut(place).parts();
    rule.settle(state, now, charge.cost, |room, mark, standing| {
        if room.is_now() {
            rank.set(Rank::of(standing.remaining, charge.terms));
        } else if room.is_after() {
            // What a wait can't help was never kept from it by what it had used.
            rank.set(Rank::DENIED);
        }
        tell(Outcome::new(charge.subject(), room, mark, standing))
    })
}

/// Takes a charge of a key that is not known yet, if it has room.
#[cold]
pub(super) fn add<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    print: u128,
    charge: &Charge<'_>,
    now: u64,
) -> Outcome {
    let mut new = S::default();
    let outcome = rule.settle(&mut new, now, charge.cost, |room, mark, standing| {
        Outcome::new(charge.subject(), room, mark, standing)
    });
    if new.until() > 0 {
        table.insert(print, new).parts().1.set(Rank::of(outcome.remaining(), charge.terms));
    }
    outcome
}

/// Tells what there is for a charge of which nothing is taken.
#[cold]
pub(super) fn look<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    place: Place,
    charge: &Charge<'_>,
    now: u64,
) -> Outcome {
    let mut new = S::default();
    let state = match place {
        Place::At(place) => &mut table.entry_mut(place).state,
        Place::Before(_) => &mut new,
    };
    report(rule, state, charge, room(rule, state, charge, now), now)
}

#[inline(always)]
pub(super) fn room<S>(rule: &impl Exact<S>, state: &S, charge: &Charge<'_>, now: u64) -> Room {
    if charge.cost == 0 { Room::NOW } else { rule.peek(state, now, charge.cost) }
}

pub(super) fn report<S>(rule: &impl Exact<S>, state: &mut S, charge: &Charge<'_>, room: Room, now: u64) -> Outcome {
    // Who asks for nothing changes nothing.
    if charge.cost > 0 {
        rule.adopt(state, now);
    }
    Outcome::new(charge.subject(), room, Record::EMPTY, rule.standing(state, now))
}
