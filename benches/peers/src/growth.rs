//! Measures how time grows with the number of keys, limits, and threads.

use crate::algorithms::{buckets, in_memory};
use crate::decisions::{Decider, decider};
use crate::floors::{TABLE, Table as Prints};
use crate::keys::{LOADS, Load};
use crate::layers;
use crate::race::{Runner, race};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{BASE, Memory, OURS, PEERS};
use crate::table::Table;

pub fn compare(scale: &Scale) {
    println!("\n## Growth\n\nDecisions in memory; the limits of a request on Redis are above.");
    keys(scale);
    limits(scale);
    layers::limits(scale);
    threads(scale);
}

/// The floor, governor, and this crate.
fn subjects(load: &Load) -> [(&'static str, Box<dyn Memory>); 3] {
    let peer = |name| {
        let peer = PEERS.into_iter().find(|peer| peer.name() == name).expect("a peer");
        (name, peer.memory(load.quota(), load.keys).expect("it decides in memory"))
    };
    [(TABLE, Box::new(Prints::new())), peer(BASE), peer(OURS)]
}

fn keys(scale: &Scale) {
    let [fewest, most] = scale.keys;
    let table =
        Table::new("More keys, uniformly drawn: ns a decision", &["keys", TABLE, BASE, OURS, "ours, of governor's"]);
    for keys in [fewest, most / 2, most] {
        let load = Load::uniform("", keys);
        let mut runners = subjects(&load).map(|(name, subject)| decider(name, subject, &load, 1));
        race(&mut runners, scale.rounds / 3 + 1, Decider::round);
        let [floor, governor, ours] = &runners;
        let [floor, base, own] = [floor, governor, ours].map(|runner| Spread::of(&runner.rounds));
        table.row(&keys.to_string(), &[&floor, &base, &own, &Spread::ratio(&ours.rounds, &governor.rounds)]);
    }
}

fn limits(scale: &Scale) {
    let table = Table::new(
        "More limits of one request (token buckets, 10,000 keys)",
        &["limits", "ns a request", "of one limit's"],
    );
    let load = &LOADS[1];
    let mut runners = [1, 2, 3, 4, 8].map(|limits| decider(&limits.to_string(), in_memory(buckets(limits)), load, 1));
    race(&mut runners, scale.rounds, Decider::round);
    for Runner { name, rounds, .. } in &runners {
        table.row(name, &[&Spread::of(rounds), &Spread::ratio(rounds, &runners[0].rounds)]);
    }
}

fn threads(scale: &Scale) {
    let title = "Two threads: throughput of both, relative to one";
    let table = Table::new(title, &["", "1 key", "10,000 keys", "1 million keys"]);
    let loads = LOADS.iter().filter(|load| load.keys <= scale.keys[0] && load.name != "1M-zipf");
    let gains: Vec<[Spread; 3]> = loads.map(|load| gains(load, scale)).collect();
    for (index, name) in [TABLE, BASE, OURS].into_iter().enumerate() {
        let cells: Vec<String> = (0..3)
            .map(|load| gains.get(load).map_or("not measured".to_owned(), |gains| gains[index].to_string()))
            .collect();
        table.row(name, &[&cells[0], &cells[1], &cells[2]]);
    }
}

/// The results of each subject.
fn gains(load: &Load, scale: &Scale) -> [Spread; 3] {
    let [alone, together] =
        [1, 2].map(|threads| subjects(load).map(|(name, subject)| decider(name, subject, load, threads)));
    let mut runners: Vec<Runner<Decider>> = alone.into_iter().chain(together).collect();
    race(&mut runners, scale.rounds, Decider::round);
    [0, 1, 2].map(|subject| {
        let doubled: Vec<f64> = runners[subject].rounds.iter().map(|nanos| nanos * 2.0).collect();
        Spread::ratio(&doubled, &runners[subject + 3].rounds)
    })
}
