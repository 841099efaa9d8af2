//! A part of the store, behind one lock.

use super::table::{Place, Rank, Slot, Table};
use crate::algorithm::{Exact, Log, Remembers, Room, Standing};
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
    /// How many requests it has decided, modulo 2^32.
    pub(super) requests: u32,
}

/// The calls that a shard makes on the table and the rule of a charge, whichever they are.
macro_rules! of_charge {
    ($shard:expr, $charge:expr, ($table:ident, $rule:ident) => $call:expr) => {
        match $charge.terms.algorithm().remembers() {
            Remembers::Record($rule) => {
                let $table = &mut $shard.records;
                $call
            }
            Remembers::Log($rule) => {
                let $table = &mut $shard.logs;
                $call
            }
        }
    };
}

impl Shard {
    pub(super) const fn new() -> Self {
        Self { records: Table::new(), logs: Table::new(), requests: 0 }
    }

    pub(super) fn keys(&self) -> usize {
        self.records.len() + self.logs.len()
    }

    pub(super) fn heap(&self) -> usize {
        self.records.heap() + self.logs.heap() + self.logs.states().map(Log::heap).sum::<usize>()
    }

    /// Whether `charge` has room, of which nothing is taken yet.
    pub(super) fn peek(&mut self, print: u128, charge: &Charge<'_>, now: u64) -> Room {
        of_charge!(self, charge, (table, rule) => match table.find(print) {
            Place::At(at) => rule.peek(&table.entry(at).state, now, charge.cost),
            Place::Before(_) => rule.peek(&Default::default(), now, charge.cost),
        })
    }

    /// Takes a charge that has room. At `most` keys, another makes way.
    pub(super) fn commit(&mut self, print: u128, charge: &Charge<'_>, now: u64, most: usize) -> (Record, Standing) {
        if self.keys() >= most && !self.holds(print, charge) {
            self.evict(now);
        }
        of_charge!(self, charge, (table, rule) => commit(table, rule, print, charge, now))
    }

    /// Reports a charge that is not taken, because it was `denied`, or asks for nothing.
    pub(super) fn report(&mut self, print: u128, charge: &Charge<'_>, now: u64, denied: bool) -> Standing {
        of_charge!(self, charge, (table, rule) => match table.find(print) {
            Place::At(at) => {
                let entry = table.entry_mut(at);
                if denied {
                    entry.set_rank(Rank::DENIED);
                    if entry.state.until() > now {
                        rule.fall_back(&mut entry.state, now);
                    }
                }
                let standing = rule.standing(&entry.state, now);
                // Under other numbers than it was left by, a state can come to nothing.
                if entry.state.until() == 0 {
                    table.remove(at);
                }
                standing
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
                entry.set_rank(Rank::of(remaining, charge.terms.algorithm().capacity()));
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

    pub(super) fn sweep(&mut self, slots: usize, now: u64) {
        self.records.sweep(slots, now);
        self.logs.sweep(slots, now);
    }

    fn holds(&mut self, print: u128, charge: &Charge<'_>) -> bool {
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

fn commit<S: Slot>(
    table: &mut Table<S>,
    rule: &dyn Exact<S>,
    print: u128,
    charge: &Charge<'_>,
    now: u64,
) -> (Record, Standing) {
    let (mark, entry) = match table.find(print) {
        Place::At(at) => {
            let entry = table.entry_mut(at);
            (rule.commit(&mut entry.state, now, charge.cost), entry)
        }
        Place::Before(_) => {
            let mut state = S::default();
            let mark = rule.commit(&mut state, now, charge.cost);
            (mark, table.insert(print, state))
        }
    };
    let standing = rule.standing(&entry.state, now);
    entry.set_rank(Rank::of(standing.remaining, charge.terms.algorithm().capacity()));
    (mark, standing)
}
