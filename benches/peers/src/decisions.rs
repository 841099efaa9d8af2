//! Measures the time of a decision in memory, in ns.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tower_ratelimit::Limit;

use crate::algorithms::{BUCKET, algorithms, in_memory};
use crate::floors::{clocks, tables};
use crate::keys::{self, BATCH, Keys, LOADS, Load};
use crate::race::{Runner, race, rounds};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{BASE, Memory, OURS, PEERS};
use crate::table::Table;

/// The most batches of a round, and the longest that a round may take.
const BATCHES: usize = 40;
const LONGEST: Duration = Duration::from_millis(10);

/// A limiter, and the keys of each thread.
pub struct Decider {
    subject: Box<dyn Memory>,
    keys: Vec<Keys>,
}

pub fn compare(scale: &Scale) {
    println!(
        "\n## Decisions in memory\n\nEach figure is the median of {} rounds, with the 10th and the 90th percentile in \
         parentheses. In each round, the median of batches of {BATCH} decisions counts.",
        scale.rounds
    );
    for threads in [1, 2] {
        for load in LOADS.iter().filter(|load| load.keys <= scale.keys[0]) {
            let floor = |(name, table)| decider(name, table, load, threads);
            let mut runners: Vec<_> = tables().map(floor).into();
            for peer in PEERS {
                if let Ok(subject) = peer.memory(load.quota(), load.keys) {
                    runners.push(decider(peer.name(), subject, load, threads));
                }
            }
            if load.keys == 1 {
                let clock = |(name, clock)| decider(name, clock, load, threads);
                runners.extend(clocks().map(clock));
            }
            race(&mut runners, scale.rounds, Decider::round);
            let keys = if load.keys == 1 { "1 key".to_owned() } else { format!("{} keys", load.title) };
            let title = format!("{keys}, threads: {threads}");
            let table = Table::new(&title, &["", "ns a decision", "of governor's", "of ours"]);
            rows(&table, &runners, [BASE, OURS]);
            for peer in PEERS {
                if let Err(why) = peer.memory(load.quota(), load.keys) {
                    table.without(peer.name(), why);
                }
            }
        }
    }
    let load = &LOADS[1];
    let subjects = algorithms().map(|(name, algorithm)| (name, in_memory([Limit::new("limit", algorithm)])));
    let mut runners: Vec<_> = subjects.map(|(name, subject)| decider(name, subject, load, 1)).into();
    race(&mut runners, scale.rounds, Decider::round);
    let title = "All algorithms of this crate, 10,000 keys, threads: 1 (the log denies)";
    rows(&Table::new(title, &["", "ns a decision", "of the token bucket's"]), &runners, [BUCKET]);
}

fn rows<const BASES: usize>(table: &Table, runners: &[Runner<Decider>], bases: [&str; BASES]) {
    for runner in runners {
        let mut cells = vec![Spread::of(&runner.rounds)];
        cells.extend(bases.map(|base| Spread::ratio(&runner.rounds, rounds(runners, base))));
        let cells: Vec<_> = cells.iter().map(|cell| cell as _).collect();
        table.row(&runner.name, &cells);
    }
}

/// Makes every key known.
pub fn warm(subject: &dyn Memory, keys: u32) {
    for key in 0..keys {
        subject.decide(&keys::name(key));
    }
}

pub fn decider(name: &str, subject: Box<dyn Memory>, load: &Load, threads: u64) -> Runner<Decider> {
    warm(&*subject, load.keys);
    let keys = (1..=threads).map(|seed| Keys::new(load, seed)).collect();
    Runner::new(name, Decider { subject, keys })
}

impl Decider {
    pub fn round(&mut self) -> f64 {
        let subject = &*self.subject;
        let barrier = Barrier::new(self.keys.len());
        let decide = |keys: &mut Keys| {
            barrier.wait();
            let (started, mut batches) = (Instant::now(), Vec::with_capacity(BATCHES));
            while batches.len() < BATCHES && started.elapsed() < LONGEST {
                let batch = keys.next();
                let start = Instant::now();
                subject.decide_each(batch);
                batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
            }
            // Ignore moments in which the machine was busy with something else.
            Spread::of(&batches).median
        };
        if let [keys] = &mut self.keys[..] {
            return decide(keys);
        }
        let threads = self.keys.len() as f64;
        thread::scope(|scope| {
            let threads: Vec<_> = self.keys.iter_mut().map(|keys| scope.spawn(|| decide(keys))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it decides")).sum::<f64>()
        }) / threads
    }
}
