//! A part of the store, behind one lock.

use std::cmp::Ordering;
use std::mem;

use super::overrides::Overrides;
use super::settle::{add, look, report, room, take_at, take_known};
use super::table::{Candidate, HalfLine, Line, Place, Rank, Slot, Table};
use crate::algorithm::{
    Availability, ByState, ChargeMark, CompactState, Log, PreparedAlgorithm, RateAlgorithm, SoftLimit,
};
use crate::decision::Outcome;
use crate::store::Charge;

impl Slot for CompactState {
    type Aligned = HalfLine;

    fn until(&self) -> u64 {
        self.expires_at
    }
}

impl Slot for Log {
    type Aligned = Line;

    fn until(&self) -> u64 {
        self.expires_at
    }
}

/// What there is a table of.
pub(super) trait Tabled: Slot + Sized {
    fn table(shard: &mut Shard) -> &mut Table<Self>;
}

impl Tabled for CompactState {
    #[inline]
    fn table(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.records
    }
}

impl Tabled for Log {
    #[inline]
    fn table(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.logs
    }
}

/// What part of the keys have used: a table for each shape of state.
#[derive(Debug)]
// In this order, what nearly every decision looks at lies in one cache line with the lock.
#[repr(C)]
pub(super) struct Shard {
    /// How many slots are to be looked at, in quarters of one.
    due: u32,
    /// How many are added to them by a request.
    pace: u32,
    records: Table<CompactState>,
    logs: Table<Log>,
    pub(super) overrides: Overrides,
}

/// How many slots a sweep looks at, at least, in quarters of one.
const SWEEP: u32 = 4 * 64;

/// How many slots a request is to look at, in quarters of one, where the last sweep dropped nothing, and where it did.
/// Few where it didn't: what another core has just written takes long to look at.
const CALM: u32 = 1;
const BUSY: u32 = 8;

/// How many more for each key that it adds: several, so that a store in which every request leaves something that is
/// soon forgotten stays a small multiple of what it remembers.
const FOR_NEW: u32 = 16;

/// Where the key of one of several charges is, and what stands there before any is taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    place: usize,
    state: CompactState,
    rank: Rank,
}

/// The entry that is evicted, and the table that holds it.
enum Victim {
    Record(Candidate),
    Log(Candidate),
}

impl Victim {
    fn rank(&self) -> Rank {
        match self {
            Self::Record(candidate) | Self::Log(candidate) => candidate.rank,
        }
    }
}

/// What is done with a rule, whichever it is: one copy for each algorithm, so that the compiler sees through all of it.
macro_rules! of_rule {
    ($of:expr, $rule:ident => $call:expr) => {
        of_rule!($of, $rule, { $call }, { $call })
    };
    ($of:expr, $rule:ident, $record:block, $log:block) => {
        match $of {
            PreparedAlgorithm::Gcra($rule) => $record,
            PreparedAlgorithm::GcraQueue($rule) => $record,
            PreparedAlgorithm::IntervalBucket($rule) => $record,
            PreparedAlgorithm::FixedWindow($rule) => $record,
            PreparedAlgorithm::CalendarWindow($rule) => $record,
            PreparedAlgorithm::SlidingWindowCounter($rule) => $record,
            PreparedAlgorithm::LogWindow($rule) => $log,
        }
    };
}
pub(super) use of_rule;

/// The same with the rule of a charge, which may have overage, and with the table for it.
macro_rules! of_charge {
    ($charge:expr, $rule:ident => $call:expr) => {
        of_charge!(@ $charge, $rule, { $call }, { $call })
    };
    ($shard:ident, $charge:expr, ($table:ident, $rule:ident) => $call:expr) => {
        of_charge!(@ $charge, $rule, { let $table = &$shard.records; $call }, { let $table = &$shard.logs; $call })
    };
    (mut $shard:ident, $charge:expr, ($table:ident, $rule:ident) => $call:expr) => {
        of_charge!(
            @ $charge, $rule,
            { let $table = &mut $shard.records; $call },
            { let $table = &mut $shard.logs; $call }
        )
    };
    (@ $charge:expr, $rule:ident, $record:block, $log:block) => {
        match $charge.spec.raised() {
            None => of_rule!($charge.spec.rule(), $rule, $record, $log),
            Some(ceiling) => match (ceiling.by_state(), $charge.spec.rule().by_state()) {
                (ByState::Compact(ceiling), ByState::Compact(limit)) => {
                    let $rule = &SoftLimit { limit, ceiling };
                    $record
                }
                (ByState::Log(ceiling), ByState::Log(limit)) => {
                    let $rule = &SoftLimit { limit, ceiling };
                    $log
                }
                _ => unreachable!("overage does not change what is remembered"),
            },
        }
    };
}

pub(super) use of_charge;

impl Shard {
    pub(super) const fn new() -> Self {
        Self { records: Table::new(), logs: Table::new(), overrides: Overrides::new(), due: 0, pace: CALM }
    }

    pub(super) fn keys(&self) -> usize {
        self.records.len() + self.logs.len()
    }

    pub(super) fn heap(&self) -> usize {
        self.records.heap()
            + self.logs.heap()
            + self.overrides.heap()
            + self.logs.states().map(Log::heap).sum::<usize>()
    }

    /// Decides a charge that is alone, of a key that is not known yet, or that takes nothing. At `most` keys, another
    /// makes way.
    pub(super) fn settle_otherwise(
        &mut self,
        print: u128,
        place: Place,
        charge: &Charge<'_>,
        most: usize,
        now: u64,
    ) -> Outcome {
        if charge.cost > 0 && matches!(place, Place::Before(_)) {
            // Otherwise the charge has no room, and nothing is kept of a new key.
            if charge.cost <= charge.spec.capacity() {
                self.make_room(1, &[], most, now);
            }
            return self.add(print, charge, most, now);
        }
        of_charge!(mut self, charge, (table, rule) => look(table, rule, place, charge, now))
    }

    /// Reads where the search for the key of a charge begins.
    #[inline]
    pub(super) fn touch(&self, charge: &Charge<'_>) -> u64 {
        self.records.touch(charge.spec.print(charge.key))
    }

    /// The key of one of several charges, if it is known and the charge is likely to have room: it had when it was last
    /// asked for. Not of limits that need a closer look, nor of logs, of which it is no small matter to keep what they
    /// were.
    #[inline]
    pub(super) fn likely(&self, charge: &Charge<'_>) -> Option<Known> {
        let spec = charge.spec;
        if charge.cost == 0 || !spec.is_plain() {
            return None;
        }
        let Place::At(place) = self.records.find(spec.print(charge.key)) else { return None };
        let (state, rank) = self.records.entry(place).seen();
        (rank != Rank::DENIED).then_some(Known { place, state, rank })
    }

    /// Takes one of several charges of a key that is there, if it has room.
    #[inline]
    pub(super) fn take_known(
        &mut self,
        &Known { place, .. }: &Known,
        charge: &Charge<'_>,
        now: u64,
        outcome: &mut Outcome,
    ) -> bool {
        match charge.spec.rule() {
            PreparedAlgorithm::Gcra(rule) => take_known(&mut self.records, rule, place, charge, now, outcome),
            PreparedAlgorithm::GcraQueue(rule) => take_known(&mut self.records, rule, place, charge, now, outcome),
            PreparedAlgorithm::IntervalBucket(rule) => take_known(&mut self.records, rule, place, charge, now, outcome),
            PreparedAlgorithm::FixedWindow(rule) => take_known(&mut self.records, rule, place, charge, now, outcome),
            PreparedAlgorithm::CalendarWindow(rule) => take_known(&mut self.records, rule, place, charge, now, outcome),
            PreparedAlgorithm::SlidingWindowCounter(rule) => {
                take_known(&mut self.records, rule, place, charge, now, outcome)
            }
            PreparedAlgorithm::LogWindow(_) => false,
        }
    }

    /// Has it as it was before any was taken.
    pub(super) fn put_back(&mut self, &Known { place, state, rank }: &Known) {
        let entry = self.records.entry_mut(place);
        entry.state = state;
        entry.parts().1.set(rank);
    }

    /// Where the charge's key is, and whether it has room, of which nothing is taken yet.
    pub(super) fn peek(&self, print: u128, charge: &Charge<'_>, now: u64) -> (Place, Availability) {
        of_charge!(self, charge, (table, rule) => {
            let place = table.find(print);
            match place {
                Place::At(at) => (place, room(rule, &table.entry(at).state, charge, now)),
                Place::Before(_) => (place, room(rule, &Default::default(), charge, now)),
            }
        })
    }

    /// Takes a charge that has room, of a key that is found there now. There must be room for a new key.
    pub(super) fn take(&mut self, print: u128, place: Place, charge: &Charge<'_>, most: usize, now: u64) -> Outcome {
        match place {
            Place::At(at) => of_charge!(mut self, charge, (table, rule) => take_at(table, rule, at, charge, now)),
            Place::Before(_) => self.add(print, charge, most, now),
        }
    }

    /// Takes a charge of a new key, if it has room. The key is not remembered if there are `most` already.
    fn add(&mut self, print: u128, charge: &Charge<'_>, most: usize, now: u64) -> Outcome {
        self.due += FOR_NEW;
        let remember = self.keys() < most;
        of_charge!(mut self, charge, (table, rule) => add(table, rule, print, charge, remember, now))
    }

    /// Evicts keys until `new` ones fit, but none of those that are `spared`: what a request has just found or written
    /// would be lost to it. Where nothing else is left to evict, the new keys don't fit.
    pub(super) fn make_room(&mut self, new: usize, spared: &[u128], most: usize, now: u64) {
        while self.keys() + new > most {
            let Some(victim) = self.victim(spared, now) else { return };
            self.evict(victim);
        }
    }

    /// Reports a charge that is not taken, of a key that is found there now: because there was no `room`,
    /// where it was `asked` for, because others had none, or because it is only asked about.
    #[cold]
    pub(super) fn report(
        &mut self,
        place: Place,
        charge: &Charge<'_>,
        room: Availability,
        now: u64,
        asked: bool,
    ) -> Outcome {
        of_charge!(mut self, charge, (table, rule) => match place {
            Place::At(at) => {
                let (state, rank) = table.entry_mut(at).parts();
                if asked && room.is_after() {
                    rank.set(Rank::DENIED);
                }
                report(rule, state, charge, room, now)
            }
            Place::Before(_) => report(rule, &mut Default::default(), charge, room, now),
        })
    }

    /// Gives back what still counts of a `charge` that left `mark`.
    pub(super) fn refund(&mut self, print: u128, charge: &Charge<'_>, mark: ChargeMark, now: u64) {
        of_charge!(mut self, charge, (table, rule) => if let Place::At(at) = table.find(print) {
            let entry = table.entry_mut(at);
            rule.refund(&mut entry.state, mark, now, charge.cost);
            if entry.state.until() == 0 {
                table.remove(at);
            } else {
                let remaining = rule.snapshot(&entry.state, now).remaining;
                entry.parts().1.set(Rank::of(remaining, charge.spec));
            }
        });
    }

    pub(super) fn forget(&mut self, print: u128) {
        if let Place::At(at) = self.records.find(print) {
            self.records.remove(at);
        }
        if let Place::At(at) = self.logs.find(print) {
            self.logs.remove(at);
        }
    }

    /// What a key is known for besides what it has used.
    pub(super) fn record(&self, print: u128) -> CompactState {
        match self.records.find(print) {
            Place::At(at) => self.records.entry(at).state,
            Place::Before(_) => CompactState::UNUSED,
        }
    }

    /// Keeps a record of a key besides its limit's state, such as its strikes, and returns whether there was room.
    ///
    /// At `most` keys it displaces another, but none that is `spared`, and none that was denied if its own `rank` is
    /// lower than that.
    pub(super) fn keep(
        &mut self,
        print: u128,
        record: CompactState,
        rank: Rank,
        spared: &[u128],
        most: usize,
        now: u64,
    ) -> bool {
        if let Place::At(at) = self.records.find(print) {
            let entry = self.records.entry_mut(at);
            let (_, known) = entry.seen();
            entry.state = record;
            // A key that was denied is not demoted by what is kept of it with a lower rank.
            entry.parts().1.set(rank.max(known));
            return true;
        }
        if self.keys() >= most {
            match self.victim(spared, now) {
                Some(victim) if victim.rank() < Rank::DENIED || rank == Rank::DENIED => self.evict(victim),
                _ => return false,
            }
        }
        self.due += FOR_NEW;
        self.records.insert(print, record).parts().1.set(rank);
        true
    }

    /// Counts a request; after every few, tells how many slots of the store are to be swept.
    #[inline]
    pub(super) fn sweep_due(&mut self) -> usize {
        self.due += self.pace;
        if self.due < SWEEP { 0 } else { mem::take(&mut self.due) as usize / 4 }
    }

    /// Has its requests look at more where a sweep has `dropped` something, and else at few.
    pub(super) fn keep_pace(&mut self, dropped: bool) {
        self.pace = if dropped { BUSY } else { CALM };
    }

    /// Whether it has dropped something.
    pub(super) fn sweep(&mut self, slots: usize, now: u64) -> bool {
        let before = self.keys();
        self.records.sweep(slots, now);
        self.logs.sweep(slots, now);
        self.keys() < before
    }

    pub(super) fn holds(&self, charge: &Charge<'_>) -> bool {
        matches!(self.find(charge.spec.print(charge.key), charge), Place::At(_))
    }

    pub(super) fn find(&self, print: u128, charge: &Charge<'_>) -> Place {
        of_charge!(self, charge, (table, _rule) => table.find(print))
    }

    /// Chooses the key to evict from a sample of each table. Among equals, one of the larger table goes.
    fn victim(&mut self, spared: &[u128], now: u64) -> Option<Victim> {
        match (self.records.candidate(spared, now), self.logs.candidate(spared, now)) {
            (Some(record), Some(log)) => {
                let record_goes = match record.value().cmp(&log.value()) {
                    Ordering::Less => true,
                    Ordering::Equal => self.records.len() >= self.logs.len(),
                    Ordering::Greater => false,
                };
                Some(if record_goes { Victim::Record(record) } else { Victim::Log(log) })
            }
            (record, log) => record.map(Victim::Record).or(log.map(Victim::Log)),
        }
    }

    fn evict(&mut self, victim: Victim) {
        match victim {
            Victim::Record(candidate) => self.records.remove(candidate.at),
            Victim::Log(candidate) => self.logs.remove(candidate.at),
        }
    }
}
