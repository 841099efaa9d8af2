//! Lower bounds: programs that do less than a limiter has to do.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use foldhash::quality::RandomState;
use governor::clock::{Clock, DefaultClock};
use hashbrown::HashTable;
use tower::util::MapRequestLayer;
use tower_ratelimit::{Clock as _, SystemClock as OurClock};

use crate::app::App;
use crate::subject::Memory;

pub const TABLE: &str = "floor: a table, one update";
const TABLE_AND_CLOCK: &str = "floor: the same, and the system's clock";
pub const NO_LAYER: &str = "no layer";
pub const EMPTY_LAYER: &str = "floor: an empty layer";

/// An application without a layer, and one behind a layer that does nothing.
pub fn apps() -> [(&'static str, App); 2] {
    // Axum clones layers, so this one has a size like others.
    let limits = Arc::new(());
    let empty = MapRequestLayer::new(move |request: axum::extract::Request| {
        black_box(&limits);
        request
    });
    [(NO_LAYER, App::Axum(App::hello())), (EMPTY_LAYER, App::Axum(App::hello().layer(empty)))]
}

/// Reads the operating system's clock, or governor's, once for each key.
pub fn clocks() -> [(&'static str, Box<dyn Memory>); 2] {
    [
        ("floor: reading the clock", Box::new(SystemClock(Instant::now()))),
        ("reading governor's clock", Box::new(GovernorsClock(DefaultClock::default()))),
    ]
}

/// The work that no limiter with the system's clock can avoid.
pub fn tables() -> [(&'static str, Box<dyn Memory>); 2] {
    let clocked = ClockedTable { table: Table::new(), clock: OurClock::new() };
    [(TABLE, Box::new(Table::new())), (TABLE_AND_CLOCK, Box::new(clocked))]
}

type Shard = Mutex<HashTable<(u128, u64)>>;

/// A sharded table of 128-bit fingerprints, with one update.
pub struct Table {
    hashers: [RandomState; 2],
    shards: Vec<Shard>,
}

impl Table {
    pub fn new() -> Self {
        Self { hashers: Default::default(), shards: (0..1_024).map(|_| Mutex::default()).collect() }
    }

    fn print(&self, key: &str) -> u128 {
        let [high, low] = [0, 1].map(|half| u128::from(self.hashers[half].hash_one(key)));
        high << 64 | low
    }
}

impl Memory for Table {
    fn decide(&self, key: &String) -> bool {
        let print = self.print(key);
        let mut shard = self.shards[(print >> 64) as usize % self.shards.len()].lock().expect("no panics");
        let entry = shard.entry(print as u64, |(known, _)| *known == print, |(known, _)| *known as u64);
        let mut entry = entry.or_insert((print, 0));
        entry.get_mut().1 += 1;
        entry.get().1 > 0
    }
}

struct ClockedTable {
    table: Table,
    clock: OurClock,
}

impl Memory for ClockedTable {
    fn decide(&self, key: &String) -> bool {
        black_box(self.clock.now());
        self.table.decide(key)
    }
}

struct SystemClock(Instant);

impl Memory for SystemClock {
    fn decide(&self, _: &String) -> bool {
        black_box(self.0.elapsed()).is_zero()
    }
}

struct GovernorsClock(DefaultClock);

impl Memory for GovernorsClock {
    fn decide(&self, _: &String) -> bool {
        black_box(self.0.now());
        true
    }
}
