//! Measures the memory of a key, and the longest insertion.

use std::time::{Duration, Instant};

use crate::allocator;
use crate::floors::{TABLE, Table as Prints};
use crate::keys;
use crate::quota::Quota;
use crate::scale::Scale;
use crate::subject::{Memory, PEERS};
use crate::table::Table;

/// The longest time in which all keys may be inserted.
const LONGEST: Duration = Duration::from_secs(60);

pub fn compare(scale: &Scale) {
    println!("\n## Memory\n\nDistinct keys of 12 bytes, by one thread. Bytes are those requested from the allocator.");
    for keys in scale.keys {
        let title = format!("{keys} keys");
        let columns = ["", "bytes a key", "longest insert, ms", "99.999 %, µs", "mean, ns"];
        let table = Table::new(&title, &columns);
        row(&table, TABLE, || Box::new(Prints::new()), keys);
        for peer in PEERS {
            match peer.memory(Quota::PLENTY, keys) {
                Ok(_) => row(&table, peer.name(), || peer.memory(Quota::PLENTY, keys).expect("it did"), keys),
                Err(why) => table.without(peer.name(), why),
            }
        }
    }
}

fn row(table: &Table, name: &str, make: impl Fn() -> Box<dyn Memory>, keys: u32) {
    let mut nanos: Vec<u32> = Vec::with_capacity(keys as usize);
    let before = allocator::bytes();
    let subject = make();
    let mut key = keys::name(0);
    let started = Instant::now();
    for number in 0..keys {
        if started.elapsed() > LONGEST {
            return table.without(name, "not done in a minute");
        }
        keys::write(&mut key, number);
        let start = Instant::now();
        subject.decide(&key);
        nanos.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    let bytes = (allocator::bytes() - before) as f64 / f64::from(keys);
    let mean = nanos.iter().map(|&nanos| f64::from(nanos)).sum::<f64>() / f64::from(keys);
    nanos.sort_unstable();
    let [longest, rare] = [1, nanos.len() / 100_000].map(|last| f64::from(nanos[nanos.len() - last]));
    let cells = [format!("{bytes:.1}"), format!("{:.2}", longest / 1e6), format!("{:.1}", rare / 1e3)];
    table.row(name, &[&cells[0], &cells[1], &cells[2], &format!("{mean:.0}")]);
}
