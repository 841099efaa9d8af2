//! Tasks that decide one request after the other, and their speed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::spread::Spread;
use crate::subject::Shared;

/// The result of a load. Latencies are in µs.
#[derive(Clone, Copy)]
pub struct Figure {
    pub per_second: f64,
    p50: f64,
    p99: f64,
}

/// A subject, and the result of each round.
pub struct Runner {
    pub name: String,
    pub subject: Arc<dyn Shared>,
    figures: Vec<Figure>,
}

impl Runner {
    pub fn new(name: impl Into<String>, subject: Arc<dyn Shared>) -> Self {
        Self { name: name.into(), subject, figures: Vec::new() }
    }

    pub async fn round(&mut self, keys: u64, concurrency: u64, span: Duration) {
        let figure = load(&self.subject, keys, concurrency, span).await;
        self.figures.push(figure);
    }

    /// Takes the finished rounds, and returns their speed.
    pub fn take(&mut self) -> Vec<Figure> {
        std::mem::take(&mut self.figures)
    }
}

/// Returns the medians of the rounds.
pub fn latencies(figures: &[Figure]) -> String {
    let [p50, p99] = [|figure: &Figure| figure.p50, |figure: &Figure| figure.p99].map(|which| {
        let samples: Vec<f64> = figures.iter().map(which).collect();
        Spread::of(&samples).median
    });
    let digits = usize::from(p50 < 10.0);
    format!("{p50:.digits$}, {p99:.digits$}")
}

pub fn per_second(figures: &[Figure]) -> Vec<f64> {
    figures.iter().map(|figure| figure.per_second).collect()
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({:.1}, {:.1})", self.per_second, self.p50, self.p99)
    }
}

/// Runs as many tasks, each of which decides one request after the other.
async fn load(subject: &Arc<dyn Shared>, keys: u64, concurrency: u64, span: Duration) -> Figure {
    let started = Instant::now();
    let tasks: Vec<_> = (0..concurrency)
        .map(|task| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut n = task.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // At least once, even if the machine stands still meanwhile.
                loop {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let before = Instant::now();
                    subject.decide((n >> 20) % keys).await;
                    took.push(before.elapsed().as_nanos() as f64 / 1e3);
                    if started.elapsed() >= span {
                        return took;
                    }
                }
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a task"));
    }
    let per_second = took.len() as f64 / started.elapsed().as_secs_f64();
    took.sort_by(f64::total_cmp);
    Figure { per_second, p50: took[took.len() / 2], p99: took[took.len() * 99 / 100] }
}

/// Runs many tasks that decide for one key at once, and returns how many requests were allowed.
pub async fn fire(subject: &Arc<dyn Shared>, key: u64, tasks: u64, times: u64) -> u64 {
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..times {
                    allowed += u64::from(subject.decide(key).await);
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.expect("a task");
    }
    allowed
}
