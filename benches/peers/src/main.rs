//! This crate beside its peers and beside what the machine allows, in one process.
//!
//! - `cargo run --release` compares times: all subjects take turns, for a few milliseconds each, so
//!   that a change of the machine's pace hits all alike. Compare ratios, not runs.
//! - `cargo run --release -- memory` compares the bytes that a key takes, and the longest insert.
//! - `cargo run --release -- decide SUBJECT LOAD DECISIONS` only decides, to be counted by callgrind:
//!   what it counts for twice as many decisions, less what it counts for these, is what they cost.

mod keys;
mod memory;
mod subject;
mod time;

use keys::{Keys, LOADS};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => time::compare(None),
        ["time", load] => time::compare(Some(load)),
        ["memory"] => memory::compare(),
        ["decide", subject, load, decisions] => decide(subject, load, decisions.parse().expect("a number")),
        _ => panic!("time LOAD, memory, or decide SUBJECT LOAD DECISIONS"),
    }
}

/// Decides so many requests, after each key has been seen, for keys that were drawn before.
fn decide(subject: &str, load: &str, decisions: usize) {
    let load = LOADS.into_iter().find(|known| known.name == load).expect("a load");
    let make = subject::all().find(|(name, _)| *name == subject).expect("a subject").1;
    let subject = make();
    time::warm(&*subject, load.keys);
    let mut keys = Keys::new(&load, 1);
    let batches: Vec<Vec<String>> = (0..40).map(|_| keys.next().to_vec()).collect();
    for batch in batches.iter().cycle().take(decisions.div_ceil(keys::BATCH)) {
        subject.decide(batch);
    }
}
