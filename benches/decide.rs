//! What a decision costs in memory: `cargo bench --bench decide`.
//!
//! All subjects take turns in one run, so that a change of the machine's pace hits all alike. The
//! figures are medians, in ns per decision; compare ratios, not runs.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tower_ratelimit::{
    Algorithm, Clock, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, SlidingLog, SlidingWindow,
    SlidingWindowCounter, SystemClock, TokenBucket,
};

const ROUNDS: usize = 15;
const DECISIONS: usize = 200_000;

struct Subject {
    name: String,
    run: Box<dyn FnMut(usize)>,
    medians: Vec<f64>,
}

fn main() {
    let second = Duration::from_secs(1);
    let algorithms: [(&str, Algorithm); 8] = [
        ("token bucket", TokenBucket::per_second(1_000_000).into()),
        ("token bucket, intervals", TokenBucket::per_second(1_000_000).at_intervals().into()),
        ("fixed window", FixedWindow::new(1_000_000, second).into()),
        ("sliding window counter", SlidingWindowCounter::new(1_000_000, second).into()),
        ("sliding window", SlidingWindow::new(1_000_000, second).into()),
        ("sliding log", SlidingLog::new(100, second).into()),
        ("leaky bucket", LeakyBucket::per_second(1_000_000).into()),
        ("leaky bucket queue", LeakyBucketQueue::per_second(1_000_000).into()),
    ];
    let mut subjects = vec![subject("reading the clock", {
        let clock = SystemClock::new();
        move |_| {
            black_box(clock.now());
        }
    })];
    for keys in [1, 10_000, 1_000_000] {
        let names: Vec<String> = (0..keys).map(|key| format!("key-{key:08}")).collect();
        for (name, algorithm) in algorithms {
            if keys > 1 && !name.starts_with("token bucket") && name != "fixed window" {
                continue;
            }
            let limiter = Limiter::new([Limit::new("bench", algorithm)]);
            let names = names.clone();
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            subjects.push(subject(&format!("{name}, {keys} keys"), move |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let key = &names[(state % names.len() as u64) as usize];
                let _ = black_box(now(limiter.acquire(key.as_str(), 1)));
            }));
        }
    }
    let two = Limiter::new([
        Limit::new("one", TokenBucket::per_second(1_000_000)),
        Limit::new("two", FixedWindow::new(1_000_000, second)),
    ]);
    subjects.push(subject("two limits, 1 key", move |_| {
        let _ = black_box(now(two.acquire("key", 1)));
    }));

    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            let start = Instant::now();
            for step in 0..DECISIONS {
                (subject.run)(step);
            }
            subject.medians.push(start.elapsed().as_nanos() as f64 / DECISIONS as f64);
        }
    }
    for subject in &mut subjects {
        subject.medians.sort_by(f64::total_cmp);
        println!("{:40} {:7.1} ns", subject.name, subject.medians[ROUNDS / 2]);
    }
}

fn subject(name: &str, run: impl FnMut(usize) + 'static) -> Subject {
    Subject { name: name.to_owned(), run: Box::new(run), medians: Vec::new() }
}

/// The result of a future that is ready, as those of the memory store are.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("memory answers at once"),
    }
}
