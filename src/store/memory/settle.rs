//! What a limit does with the entry of a key, whichever limit and table it is.

use super::table::{Place, Print, Rank, Slot, Table};
use crate::algorithm::{Exact, Room};
use crate::decision::Outcome;
use crate::record::Record;
use crate::store::Charge;

/// Takes a charge of a key that is known, if it has room, and has told what comes of it.
// That it is told in each place keeps it in registers until it is written where it stays: to copy what was written a
// moment ago stalls the processor.
#[inline(always)]
pub(super) fn settle<S: Slot, T>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
    tell: impl FnOnce(Outcome) -> T,
) -> T {
    let (state, rank) = table.entry_mut(place).parts();
    let Some((room, mark, standing)) = rule.take_at_once(state, now, charge.cost) else {
        return settle_slowly(rule, state, rank, charge, now, tell);
    };
    rank.set(Rank::of(standing.remaining, charge.terms));
    tell(Outcome::new(charge.subject(), room, mark, standing))
}

/// The same for what is no everyday matter, and where there is no room.
#[inline(never)]
fn settle_slowly<S, T>(
    rule: &impl Exact<S>,
    state: &mut S,
    rank: &mut Print,
    charge: &Charge<'_>,
    now: u64,
    tell: impl FnOnce(Outcome) -> T,
) -> T {
    let (room, mark, standing) = rule.settle(state, now, charge.cost);
    if room.is_now() {
        rank.set(Rank::of(standing.remaining, charge.terms));
    } else if room.is_after() {
        // What a wait can't help was never kept from it by what it had used.
        rank.set(Rank::DENIED);
    }
    tell(Outcome::new(charge.subject(), room, mark, standing))
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
    settle(table, rule, place, charge, now, |outcome| outcome)
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
    settle(table, rule, place, charge, now, |outcome| {
        *told = outcome;
        told.is_allowed()
    })
}

/// Takes a charge of a new key, if it has room, and inserts the key if it is to be remembered.
#[cold]
pub(super) fn add<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    print: u128,
    charge: &Charge<'_>,
    remember: bool,
    now: u64,
) -> Outcome {
    let mut new = S::default();
    let (room, mark, standing) = rule.settle(&mut new, now, charge.cost);
    let outcome = Outcome::new(charge.subject(), room, mark, standing);
    if remember && new.until() > 0 {
        table.insert(print, new).parts().1.set(Rank::of(outcome.remaining(), charge.terms));
    }
    outcome
}

/// Tells what there is for a charge of which nothing is taken.
#[inline(never)]
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
