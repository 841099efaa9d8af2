//! A part of the store, behind one lock.

use super::overrides::Overrides;
use super::table::{Place, Rank, Slot, Table};
use crate::algorithm::{Algorithm, ByState, Exact, Log, Room, Soft, Standing};
use crate::decision::{Decision, Outcome};
use crate::record::Record;
use crate::store::Charge;

impl Slot for Record {
    fn until(&self) -> u64 {
        self.until
    }
}

impl Slot for Log {
    fn until(&self) -> u64 {
        self.until
    }
}

/// What part of the keys have used: a table for each shape of state.
#[derive(Debug)]
pub(super) struct Shard {
    records: Table<Record>,
    logs: Table<Log>,
    pub(super) overrides: Overrides,
    /// How many keys there were after the last request or sweep.
    known: usize,
    /// How many slots are to be looked at.
    due: usize,
}

/// How many slots a sweep looks at.
pub(super) const SLOTS: usize = 64;

/// How many slots a request is to look at, and one that adds a key: several, so that a store in which
/// every request leaves something that is soon forgotten stays a small multiple of what it remembers.
const LOOK: usize = 2;
const LOOK_AFTER_NEW: usize = 4;

/// What a shard does with the table and the rule of a charge, whichever they are: one copy for each
/// algorithm, so that the compiler sees through all of it.
macro_rules! of_charge {
    ($shard:expr, $charge:expr, ($table:ident, $rule:ident) => $call:expr) => {
        match $charge.terms.raised() {
            None => match $charge.terms.algorithm() {
                Algorithm::FixedWindow($rule) => of_charge!(@in $shard.records, $table => $call),
                Algorithm::CalendarWindow($rule) => of_charge!(@in $shard.records, $table => $call),
                Algorithm::SlidingLog($rule) => of_charge!(@in $shard.logs, $table => $call),
                Algorithm::SlidingWindow($rule) => of_charge!(@in $shard.logs, $table => $call),
                Algorithm::SlidingWindowCounter($rule) => of_charge!(@in $shard.records, $table => $call),
                Algorithm::TokenBucket($rule) => of_charge!(@in $shard.records, $table => $call),
                Algorithm::LeakyBucket($rule) => of_charge!(@in $shard.records, $table => $call),
                Algorithm::LeakyBucketQueue($rule) => of_charge!(@in $shard.records, $table => $call),
            },
            Some(ceiling) => match (ceiling.exact(), $charge.terms.algorithm().exact()) {
                (ByState::Record(ceiling), ByState::Record(limit)) => {
                    let $rule = &Soft { limit, ceiling };
                    of_charge!(@in $shard.records, $table => $call)
                }
                (ByState::Log(ceiling), ByState::Log(limit)) => {
                    let $rule = &Soft { limit, ceiling };
                    of_charge!(@in $shard.logs, $table => $call)
                }
                _ => unreachable!("overage does not change what is remembered"),
            },
        }
    };
    (@in $of:expr, $table:ident => $call:expr) => {{
        let $table = &mut $of;
        $call
    }};
}

impl Shard {
    pub(super) const fn new() -> Self {
        Self { records: Table::new(), logs: Table::new(), overrides: Overrides::new(), known: 0, due: 0 }
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

    /// Decides a charge that is alone, and takes it if it has room and is to be taken. At `most`
    /// keys, another makes way. The outcome is written where it stays: to copy what was written a moment
    /// ago stalls the processor.
    pub(super) fn settle(&mut self, print: u128, charge: &Charge<'_>, most: usize, decision: &mut Decision) {
        let now = decision.at().as_micros();
        let take = decision.is_asked();
        // Of a new key, all that its limit can ever hold has room, and nothing else is kept.
        if self.keys() >= most && take && charge.cost > 0 && charge.cost <= charge.terms.capacity() {
            self.make_room(print, charge, 0, most, now);
        }
        of_charge!(self, charge, (table, rule) => settle(table, rule, print, charge, decision))
    }

    /// Whether `charge` has room, of which nothing is taken yet.
    pub(super) fn peek(&mut self, print: u128, charge: &Charge<'_>, now: u64) -> Room {
        of_charge!(self, charge, (table, rule) => match table.find(print) {
            Place::At(at) => rule.peek(&table.entry(at).state, now, charge.cost),
            Place::Before(_) => rule.peek(&Default::default(), now, charge.cost),
        })
    }

    /// Takes a charge that has room.
    pub(super) fn commit(&mut self, print: u128, charge: &Charge<'_>, now: u64) -> (Record, Standing) {
        of_charge!(self, charge, (table, rule) => commit(table, rule, print, charge, now))
    }

    /// If the charge's key is new, has others make way, so that there are `most` with it and the
    /// `before` that are to come first.
    pub(super) fn make_room(&mut self, print: u128, charge: &Charge<'_>, before: usize, most: usize, now: u64) {
        if self.keys() + before >= most && !self.holds(print, charge) {
            while self.keys() > 0 && self.keys() + before >= most {
                self.evict(now);
            }
        }
    }

    /// Reports a charge that is not taken: because it was `denied`, or is only asked about.
    pub(super) fn report(&mut self, print: u128, charge: &Charge<'_>, now: u64, denied: bool) -> Standing {
        of_charge!(self, charge, (table, rule) => match table.find(print) {
            Place::At(at) => {
                let entry = table.entry_mut(at);
                if denied {
                    entry.set_rank(Rank::DENIED);
                }
                rule.adopt(&mut entry.state, now);
                rule.standing(&entry.state, now)
            }
            Place::Before(_) => rule.standing(&Default::default(), now),
        })
    }

    /// Gives back what still counts of a `charge` that left `mark`.
    pub(super) fn refund(&mut self, print: u128, charge: &Charge<'_>, mark: Record, now: u64) {
        of_charge!(self, charge, (table, rule) => if let Place::At(at) = table.find(print) {
            let entry = table.entry_mut(at);
            rule.refund(&mut entry.state, mark, now, charge.cost);
            if entry.state.until() == 0 {
                table.remove(at);
            } else {
                let remaining = rule.standing(&entry.state, now).remaining;
                entry.set_rank(Rank::of(remaining, charge.terms.capacity()));
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
    pub(super) fn record(&self, print: u128) -> Record {
        match self.records.find(print) {
            Place::At(at) => self.records.entry(at).state,
            Place::Before(_) => Record::EMPTY,
        }
    }

    /// Keeps that, if there is room. At `most` keys, another makes way, but none that was denied: for the
    /// limit's own state, that would be a way out.
    pub(super) fn keep(&mut self, print: u128, record: Record, rank: Rank, most: usize, now: u64) -> bool {
        let entry = match self.records.find(print) {
            Place::At(at) => {
                let entry = self.records.entry_mut(at);
                entry.state = record;
                entry
            }
            Place::Before(_) => {
                while self.keys() >= most {
                    let [record, log] = [self.records.candidate(now), self.logs.candidate(now)];
                    if record.into_iter().chain(log).min().is_none_or(|lowest| lowest.was_denied()) {
                        return false;
                    }
                    self.evict(now);
                }
                self.records.insert(print, record)
            }
        };
        entry.set_rank(rank);
        true
    }

    /// Counts a request; after every few, part of the store is to be swept.
    pub(super) fn is_sweep_due(&mut self) -> bool {
        let keys = self.keys();
        self.due += if keys > self.known { LOOK_AFTER_NEW } else { LOOK };
        self.known = keys;
        let is_due = self.due >= SLOTS;
        if is_due {
            self.due = 0;
        }
        is_due
    }

    pub(super) fn sweep(&mut self, slots: usize, now: u64) {
        self.records.sweep(slots, now);
        self.logs.sweep(slots, now);
        self.known = self.keys();
    }

    pub(super) fn holds(&mut self, print: u128, charge: &Charge<'_>) -> bool {
        of_charge!(self, charge, (table, _rule) => matches!(table.find(print), Place::At(_)))
    }

    fn evict(&mut self, now: u64) {
        match (self.records.candidate(now), self.logs.candidate(now)) {
            (Some(record), Some(log)) if log < record => self.logs.remove(log.at),
            (Some(record), _) => self.records.remove(record.at),
            (None, Some(log)) => self.logs.remove(log.at),
            (None, None) => {}
        }
    }
}

/// [`Shard::peek`], then [`Shard::commit`] or [`Shard::report`], at the price of one look-up.
#[inline]
fn settle<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    print: u128,
    charge: &Charge<'_>,
    decision: &mut Decision,
) {
    let now = decision.at().as_micros();
    let asked = decision.is_asked() && charge.cost > 0;
    let peek = |state: &S| if charge.cost == 0 { Room::NOW } else { rule.peek(state, now, charge.cost) };
    let rank = |standing: &Standing| Rank::of(standing.remaining, charge.terms.capacity());
    let (room, mark, standing);
    match table.find(print) {
        Place::At(at) => {
            let entry = table.entry_mut(at);
            room = peek(&entry.state);
            if asked && room.is_now() {
                (mark, standing) = rule.take(&mut entry.state, now, charge.cost);
                entry.set_rank(rank(&standing));
            } else {
                rule.adopt(&mut entry.state, now);
                (mark, standing) = (Record::EMPTY, rule.standing(&entry.state, now));
                if asked && room.is_after() {
                    // What a wait can't help was never kept from it by what it had used.
                    entry.set_rank(Rank::DENIED);
                }
            }
        }
        Place::Before(_) => {
            let mut state = S::default();
            room = peek(&state);
            if asked && room.is_now() {
                (mark, standing) = rule.take(&mut state, now, charge.cost);
                table.insert(print, state).set_rank(rank(&standing));
            } else {
                (mark, standing) = (Record::EMPTY, rule.standing(&state, now));
            }
        }
    }
    decision.push(Outcome::new(charge.subject(), room, mark, standing));
}

fn commit<S: Slot>(
    table: &mut Table<S>,
    rule: &impl Exact<S>,
    print: u128,
    charge: &Charge<'_>,
    now: u64,
) -> (Record, Standing) {
    let (mark, standing, entry) = match table.find(print) {
        Place::At(at) => {
            let entry = table.entry_mut(at);
            let (mark, standing) = rule.take(&mut entry.state, now, charge.cost);
            (mark, standing, entry)
        }
        Place::Before(_) => {
            let mut state = S::default();
            let (mark, standing) = rule.take(&mut state, now, charge.cost);
            (mark, standing, table.insert(print, state))
        }
    };
    entry.set_rank(Rank::of(standing.remaining, charge.terms.capacity()));
    (mark, standing)
}
