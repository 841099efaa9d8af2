//! A flood of new keys against a store that is full of keys in various states: each new key evicts another.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tower_ratelimit::{FixedWindow, Limit, Limiter, MemoryStore};

use crate::keys::{self, BATCH};
use crate::race::{Runner, race, rounds};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::Memory;
use crate::table::Table;

const FRESH: &str = "fresh";

/// The state of the keys in a store, and the costs that bring a key into it after its first request, of cost 1.
const STATES: [(&str, &[u64]); 3] = [(FRESH, &[]), ("half used", &[4]), ("denied", &[9, 1])];

/// As all windows end together, all keys of one state are equally good to evict.
const LIMIT: FixedWindow = FixedWindow::new(10, Duration::from_secs(360 * 86_400));

/// The most batches of a round, and the longest that a round may take.
const BATCHES: usize = 40;
const LONGEST: Duration = Duration::from_millis(10);

struct Flood {
    store: Arc<MemoryStore>,
    limiter: Limiter,
    further_costs: &'static [u64],
    attackers: Vec<Attacker>,
}

/// The new keys of a thread.
struct Attacker {
    next: u32,
    step: u32,
    batch: Vec<String>,
    /// The time of each request that was timed alone.
    nanos: Vec<u32>,
}

pub fn compare(scale: &Scale) {
    let keys = scale.keys[0];
    println!(
        "\n## Attack\n\nEach request has a new key. The store is full, with {keys} keys, so that it evicts one of \
         them. All keys are in the same state: fresh, half used or denied. Each figure is the median of {} rounds, \
         with the 10th and the 90th percentile in parentheses. The 99.99th percentile is of single requests, and \
         includes the time of reading the clock.",
        scale.rounds
    );
    for threads in [1, 2] {
        let mut runners = STATES.map(|(name, costs)| Runner::new(name, Flood::new(keys, costs, threads)));
        race(&mut runners, scale.rounds, Flood::round);
        let columns = [
            "the store's keys",
            "ns a new key",
            "new keys a second, of fresh",
            "99.99 %, µs",
            "of fresh",
            "bytes a key",
        ];
        let table = Table::new(&format!("threads: {threads}"), &columns);
        let fresh = rounds(&runners, FRESH).to_vec();
        let fresh_percentile = runners[0].subject.percentile();
        for Runner { name, subject, rounds } in &mut runners {
            let percentile = subject.percentile();
            let bytes = subject.store.bytes() as f64 / subject.store.keys() as f64;
            let ratio = format!("{:.2}", percentile / fresh_percentile);
            let [percentile, bytes] = [percentile / 1e3, bytes].map(|figure| format!("{figure:.1}"));
            table.row(name, &[&Spread::of(rounds), &Spread::ratio(&fresh, rounds), &percentile, &ratio, &bytes]);
        }
    }
}

impl Flood {
    fn new(keys: u32, further_costs: &'static [u64], threads: u32) -> Self {
        let store = Arc::new(MemoryStore::new().max_keys(keys as usize));
        let limiter = Limiter::builder([Limit::new("limit", LIMIT)]).store(Arc::clone(&store)).build();
        // Some shards fill up before others.
        let fill = keys + keys / 4;
        let attackers = (0..threads).map(|first| Attacker {
            next: fill + first,
            step: threads,
            batch: vec![keys::name(0); BATCH],
            nanos: Vec::new(),
        });
        let flood = Self { store, limiter, further_costs, attackers: attackers.collect() };
        for key in (0..fill).map(keys::name) {
            flood.limiter.decide(&key);
            flood.charge(&key);
        }
        flood
    }

    /// Brings a key into the state of the others.
    fn charge(&self, key: &str) {
        for &cost in self.further_costs {
            drop(self.limiter.acquire(key, cost));
        }
    }

    fn round(&mut self) -> f64 {
        let mut attackers = std::mem::take(&mut self.attackers);
        let barrier = Barrier::new(attackers.len());
        let flood = &*self;
        let attack = |attacker: &mut Attacker| {
            barrier.wait();
            attacker.attack(flood)
        };
        let nanos = match &mut attackers[..] {
            [alone] => attack(alone),
            several => thread::scope(|scope| {
                let attack = &attack;
                let threads: Vec<_> =
                    several.iter_mut().map(|attacker| scope.spawn(move || attack(attacker))).collect();
                let count = threads.len() as f64;
                threads.into_iter().map(|thread| thread.join().expect("it attacks")).sum::<f64>() / count
            }),
        };
        self.attackers = attackers;
        nanos
    }

    /// In ns, of the requests that were timed individually.
    fn percentile(&self) -> f64 {
        let mut nanos: Vec<u32> = self.attackers.iter().flat_map(|attacker| attacker.nanos.iter().copied()).collect();
        nanos.sort_unstable();
        f64::from(nanos[nanos.len() - 1 - nanos.len() / 10_000])
    }
}

impl Attacker {
    /// The median time of a new key, in ns, over batches that are timed as a whole. In between, other batches are timed
    /// key by key.
    fn attack(&mut self, flood: &Flood) -> f64 {
        let (started, mut batches) = (Instant::now(), Vec::with_capacity(BATCHES));
        while batches.len() < BATCHES && (batches.is_empty() || started.elapsed() < LONGEST) {
            self.invent();
            let start = Instant::now();
            flood.limiter.decide_each(&self.batch);
            batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
            self.batch.iter().for_each(|key| flood.charge(key));

            self.invent();
            for key in &self.batch {
                let start = Instant::now();
                flood.limiter.decide(key);
                self.nanos.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
            }
            self.batch.iter().for_each(|key| flood.charge(key));
        }
        Spread::of(&batches).median
    }

    fn invent(&mut self) {
        for key in &mut self.batch {
            keys::write(key, self.next);
            self.next += self.step;
        }
    }
}
