//! The diagrams of the algorithms in the documentation, drawn from runs of the crate.
//!
//! Each algorithm decides the same requests. A diagram that differs from the committed one fails the test;
//! `UPDATE_EXPECTED=1` writes it to `src/guide/diagrams`.

mod run;
mod svg;

use std::time::Duration;
use std::{env, fs};

use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket,
};

use self::run::Run;
use self::svg::{Curve, Diagram};

/// The length of windows.
const PERIOD: Duration = Duration::from_secs(4);

fn diagrams() -> [(&'static str, Algorithm, Diagram); 8] {
    let window = |name, description| Diagram { name, description, curve: Curve::Remaining, window: Some(PERIOD) };
    let smooth = |name, description| Diagram { name, description, curve: Curve::Remaining, window: None };
    let second = Duration::from_secs(1);
    [
        ("fixed_window", FixedWindow::new(4, PERIOD).into(), window("Fixed window", "4 in each window of 4 s")),
        (
            "sliding_window_counter",
            SlidingWindowCounter::new(4, PERIOD).into(),
            window("Sliding window counter", "4 in 4 s, with the previous window weighted"),
        ),
        (
            "sliding_window",
            SlidingWindow::new(4, PERIOD).buckets(4).into(),
            smooth("Sliding window", "4 in 4 s, in buckets of 1 s"),
        ),
        ("sliding_log", SlidingLog::new(4, PERIOD).into(), smooth("Sliding log", "4 in any 4 s")),
        (
            "token_bucket",
            TokenBucket::new(4, 1, second).into(),
            smooth("Token bucket", "4 at once, and one more each second"),
        ),
        (
            "token_bucket_at_intervals",
            TokenBucket::new(4, 4, PERIOD).at_intervals().into(),
            smooth("Token bucket at intervals", "4 at once, refilled 4 s after the first use"),
        ),
        (
            "leaky_bucket",
            LeakyBucket::new(4, 1, second).into(),
            Diagram {
                name: "Leaky bucket",
                description: "a level of at most 4, which drains by 1 each second",
                curve: Curve::Level,
                window: None,
            },
        ),
        (
            "leaky_bucket_queue",
            LeakyBucketQueue::new(4, 1, second).into(),
            Diagram {
                name: "Leaky bucket queue",
                description: "one request proceeds each second, and up to 4 wait",
                curve: Curve::Departures,
                window: None,
            },
        ),
    ]
}

#[tokio::test]
async fn committed_diagrams_match_the_algorithms() {
    for (file, algorithm, diagram) in diagrams() {
        let drawn = diagram.draw(&Run::of(algorithm).await);
        let path = support::repository(format!("src/guide/diagrams/{file}.svg"));
        if env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&path, &drawn).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            committed, drawn,
            "{file} has changed: run the test with UPDATE_EXPECTED=1, and look at the diagram"
        );
    }
}

/// Otherwise Markdown would end the image at the blank line.
#[tokio::test]
async fn diagrams_have_no_blank_lines() {
    for (file, algorithm, diagram) in diagrams() {
        let drawn = diagram.draw(&Run::of(algorithm).await);
        assert!(drawn.lines().all(|line| !line.trim().is_empty()), "{file}");
    }
}
