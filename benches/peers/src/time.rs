//! Nanoseconds for a decision, and how they compare.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::keys::{self, BATCH, Keys, LOADS, Load};
use crate::subject::{BASE, DETAILS, OURS, SUBJECTS, Subject};

const ROUNDS: usize = 101;

/// How many batches a subject decides in a round.
const BATCHES: usize = 40;

/// A subject, its keys of each thread, and the nanoseconds that a decision took in each round.
struct Contender {
    name: &'static str,
    subject: Box<dyn Subject>,
    keys: Vec<Keys>,
    rounds: Vec<f64>,
}

pub fn compare(only: Option<&str>) {
    println!("median ns for a decision, and the ratio to the first: median (from 10 % to 90 % of {ROUNDS} rounds)");
    for threads in [1, 2] {
        for load in LOADS.iter().filter(|load| only.is_none_or(|only| only == load.name)) {
            println!("\n{} keys, threads: {threads}", load.name);
            table(race(SUBJECTS.map(|(name, make)| (name, make())).into(), load, threads));
        }
    }
    if only.is_none() {
        println!("\n10k keys, threads: 1");
        let ours = SUBJECTS.into_iter().filter(|(name, _)| *name == OURS);
        table(race(ours.chain(DETAILS).map(|(name, make)| (name, make())).collect(), &LOADS[1], 1));
    }
}

/// Has every key seen.
pub fn warm(subject: &dyn Subject, keys: u32) {
    for key in 0..keys {
        subject.decide(&[keys::name(key)]);
    }
}

fn race(subjects: Vec<(&'static str, Box<dyn Subject>)>, load: &Load, threads: u64) -> Vec<Contender> {
    let contender = |(name, subject): (_, Box<dyn Subject>)| {
        warm(&*subject, load.keys);
        let keys = (1..=threads).map(|seed| Keys::new(load, seed)).collect();
        Contender { name, subject, keys, rounds: Vec::new() }
    };
    let mut contenders: Vec<Contender> = subjects.into_iter().map(contender).collect();
    for _ in 0..ROUNDS {
        for contender in &mut contenders {
            let time = contender.round();
            contender.rounds.push(time);
        }
    }
    contenders
}

impl Contender {
    fn round(&mut self) -> f64 {
        let subject = &*self.subject;
        let barrier = Barrier::new(self.keys.len());
        let decide = |keys: &mut Keys| {
            barrier.wait();
            let mut time = Duration::ZERO;
            for _ in 0..BATCHES {
                let batch = keys.next();
                let start = Instant::now();
                subject.decide(batch);
                time += start.elapsed();
            }
            time.as_nanos() as f64 / (BATCHES * BATCH) as f64
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

fn table(contenders: Vec<Contender>) {
    let base = contenders.iter().find(|contender| contender.name == BASE).unwrap_or(&contenders[0]);
    for contender in &contenders {
        let ratios = contender.rounds.iter().zip(&base.rounds).map(|(time, base)| time / base).collect();
        let [low, median, high] = quantiles(ratios);
        let [_, time, _] = quantiles(contender.rounds.clone());
        println!("{:18} {time:8.1} ns  {median:5.2} ({low:.2} to {high:.2})", contender.name);
    }
}

fn quantiles(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    [of.len() / 10, of.len() / 2, of.len() * 9 / 10].map(|at| of[at])
}
