//! The limits that the checks use.

use std::time::Duration;

use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};
use crate::limit::Limit;

const PERIOD: Duration = Duration::from_secs(10);

/// One limit of each algorithm.
pub(super) fn algorithms() -> Vec<Limit> {
    let algorithms: [(&str, Algorithm); 9] = [
        ("fixed window", FixedWindow::new(10, PERIOD).into()),
        ("sliding log", SlidingLog::new(10, PERIOD).into()),
        ("sliding window", SlidingWindow::new(10, PERIOD).buckets(5).into()),
        ("counter", SlidingWindowCounter::new(10, PERIOD).into()),
        ("counter, rounded down", SlidingWindowCounter::new(10, PERIOD).rounding(Rounding::Down).into()),
        ("token bucket", TokenBucket::new(10, 3, PERIOD).into()),
        ("token bucket at intervals", TokenBucket::new(10, 3, PERIOD).at_intervals().into()),
        ("leaky bucket", LeakyBucket::new(10, 3, PERIOD).into()),
        ("queue", LeakyBucketQueue::new(10, 3, PERIOD).into()),
    ];
    algorithms.into_iter().map(|(name, algorithm)| Limit::new(name, algorithm)).collect()
}

/// Requests of three limits, with different algorithms beside each other.
pub(super) fn combinations() -> Vec<Vec<Limit>> {
    let limits = algorithms();
    let neighbours = |distance: usize| {
        let limits = &limits;
        (0..limits.len()).map(move |index| [0, distance, 2 * distance].map(|offset| (index + offset) % limits.len()))
    };
    let triples = (1..=2).flat_map(neighbours);
    triples.map(|triple| triple.iter().map(|index| limits[*index].clone()).collect()).collect()
}

/// Soft limits, limits in shadow mode, and limits in quota mode.
pub(super) fn modes() -> Vec<Vec<Limit>> {
    let mut modes: Vec<Vec<Limit>> = algorithms().into_iter().map(|limit| vec![limit.soft(30)]).collect();
    for limit in algorithms() {
        modes.push(vec![limit.shadow(), Limit::new("enforced", TokenBucket::new(5, 1, PERIOD))]);
    }
    for limit in algorithms() {
        let other = Limit::new("other", FixedWindow::new(3, PERIOD));
        modes.push(vec![limit.quota_mode(), other.quota_mode(), Limit::new("all", SlidingLog::new(30, PERIOD))]);
    }
    modes
}

/// Limits with penalties.
pub(super) fn penalties() -> Vec<Vec<Limit>> {
    let penalty = Penalty::after(3, PERIOD).locked_out_for(PERIOD).doubling_up_to(8 * PERIOD);
    let mut penalties: Vec<Vec<Limit>> = algorithms().into_iter().map(|limit| vec![limit.penalty(penalty)]).collect();
    for limit in algorithms() {
        penalties.push(vec![limit.penalty(penalty), Limit::new("beside", FixedWindow::new(6, PERIOD))]);
    }
    penalties
}
