//! What a limit does with the entry of a key, whichever limit and table it is.

use super::table::{Place, Print, Rank, Slot, Table};
use crate::algorithm::{Availability, ChargeMark, CompactState, RateAlgorithm};
use crate::decision::Outcome;
use crate::store::Charge;

/// Takes a charge of a key that is known, if it has room, and has told what comes of it.
// That it is told in each place keeps it in registers until it is written where it stays: to copy what was written a
// moment ago stalls the processor.
#[inline(always)]
pub(super) fn settle<S: Slot, T>(
    table: &mut Table<S>,
    rule: &impl RateAlgorithm<S>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
    tell: impl FnOnce(Outcome) -> T,
) -> T {
    let (state, rank) = table.entry_mut(place).parts();
    let availability = rule.peek(state, now, charge.cost);
    if !availability.is_now() {
        return tell(deny(rule, state, rank, charge, availability, now));
    }
    let (mark, snapshot) = rule.commit(state, now, charge.cost);
    rank.set(Rank::of(snapshot.remaining, charge.spec));
    tell(Outcome::new(charge.subject(), availability, mark, snapshot))
}

/// Denies a charge of a key that is known.
#[inline(never)]
fn deny<S>(
    rule: &impl RateAlgorithm<S>,
    state: &mut S,
    rank: &mut Print,
    charge: &Charge<'_>,
    availability: Availability,
    now: u64,
) -> Outcome {
    // A cost beyond the capacity says nothing about how much the key has used.
    if availability.is_after() {
        rank.set(Rank::DENIED);
    }
    report(rule, state, charge, availability, now)
}

/// Takes one of several charges, which has room, of a key that is known.
#[inline(never)]
pub(super) fn take_at<S: Slot>(
    table: &mut Table<S>,
    rule: &impl RateAlgorithm<S>,
    place: usize,
    charge: &Charge<'_>,
    now: u64,
) -> Outcome {
    settle(table, rule, place, charge, now, |outcome| outcome)
}

/// Takes one of several charges of a key that is there, if it has room, and writes what comes of it where it stays.
#[inline(never)]
pub(super) fn take_known(
    table: &mut Table<CompactState>,
    rule: &impl RateAlgorithm<CompactState>,
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
    rule: &impl RateAlgorithm<S>,
    print: u128,
    charge: &Charge<'_>,
    remember: bool,
    now: u64,
) -> Outcome {
    let mut new = S::default();
    let (room, mark, standing) = rule.decide(&mut new, now, charge.cost);
    let outcome = Outcome::new(charge.subject(), room, mark, standing);
    if remember && new.until() > 0 {
        table.insert(print, new).parts().1.set(Rank::of(outcome.remaining(), charge.spec));
    }
    outcome
}

/// Tells what there is for a charge of which nothing is taken.
#[inline(never)]
pub(super) fn look<S: Slot>(
    table: &mut Table<S>,
    rule: &impl RateAlgorithm<S>,
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
pub(super) fn room<S>(rule: &impl RateAlgorithm<S>, state: &S, charge: &Charge<'_>, now: u64) -> Availability {
    if charge.cost == 0 { Availability::NOW } else { rule.peek(state, now, charge.cost) }
}

pub(super) fn report<S>(
    rule: &impl RateAlgorithm<S>,
    state: &mut S,
    charge: &Charge<'_>,
    room: Availability,
    now: u64,
) -> Outcome {
    // Who asks for nothing changes nothing.
    if charge.cost > 0 {
        rule.convert_rate(state, now);
    }
    Outcome::new(charge.subject(), room, ChargeMark::NONE, rule.snapshot(state, now))
}
