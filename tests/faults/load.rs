//! Requests that keep coming while something is wrong, and what became of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_ratelimit::{DecidedBy, Event, FixedWindow, Limit, Limiter, OnStoreError, RedisStore, Share, StoreErrorKind};

/// What each request may take from its key, which no other request has.
const TOKENS: u64 = 10;

/// How long each test lets a request take, as machines stand still for seconds: less than what is stopped for five. The
/// deadline is 50 ms; what was measured is printed.
const PATIENCE: Duration = Duration::from_secs(4);

/// How many decisions in a row come from the store once all is well again, and how long that may take, however busy the
/// machine is. What was measured is printed.
const WELL: u64 = 20;
const RECOVERY: Duration = Duration::from_secs(60);

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    key: u64,
    took: Duration,
    /// `None` where it was refused because the store failed.
    by: Option<DecidedBy>,
    allowed: bool,
}

/// Tasks that ask for one decision after the other, each under a key of its own, by each of the three
/// policies in turn.
pub(crate) struct Load {
    /// To look afterwards, with more patience.
    auditor: Limiter,
    errors: Arc<AtomicU64>,
    /// How many decisions have come from the store since the last that did not.
    in_a_row: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Sample>>>,
}

pub(crate) fn limit() -> Limit {
    Limit::new("limit", FixedWindow::new(TOKENS as u32, Duration::from_secs(86_400)))
}

impl Load {
    /// 16 tasks on one store.
    pub(crate) fn start(store: &RedisStore) -> Self {
        let policies = [OnStoreError::Refuse, OnStoreError::Allow, OnStoreError::DecideLocally(Share::one_of(2))];
        let errors = Arc::new(AtomicU64::new(0));
        let limiters = Arc::new(policies.map(|policy| {
            let count = errors.clone();
            Limiter::new([limit()]).store(store.clone()).on_store_error(policy).observe(move |event| match event {
                Event::StoreFailed { error, .. } if error.kind() == StoreErrorKind::Failed => {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            })
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let keys = Arc::new(AtomicU64::new(0));
        let in_a_row = Arc::new(AtomicU64::new(0));
        let task = || requests(limiters.clone(), stop.clone(), keys.clone(), in_a_row.clone());
        let tasks = (0..16).map(|_| tokio::spawn(task())).collect();
        let auditor = Limiter::new([limit()]).store(store.clone()).deadline(Duration::from_secs(20));
        Self { auditor, errors, in_a_row, stop, tasks }
    }

    pub(crate) async fn run(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Waits until all is well again, and says how long that took.
    pub(crate) async fn recovered(&self) -> Duration {
        let returned = Instant::now();
        self.in_a_row.store(0, Ordering::Relaxed);
        while self.in_a_row.load(Ordering::Relaxed) < WELL {
            assert!(returned.elapsed() < RECOVERY, "it has not recovered");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        returned.elapsed()
    }

    /// Ends the load, and reports on it.
    pub(crate) async fn end(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        for task in self.tasks {
            samples.extend(task.await.expect("a task"));
        }
        Report { auditor: self.auditor, errors: self.errors.load(Ordering::Relaxed), samples }
    }
}

async fn requests(
    limiters: Arc<[Limiter; 3]>,
    stop: Arc<AtomicBool>,
    keys: Arc<AtomicU64>,
    in_a_row: Arc<AtomicU64>,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = keys.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = limiters[key as usize % 3].acquire(key, 1).await;
        let took = begun.elapsed();
        let (by, allowed) = match &answer {
            Ok(decision) => (Some(decision.decided_by()), decision.is_allowed()),
            Err(_) => (None, false),
        };
        if by == Some(DecidedBy::Store) {
            in_a_row.fetch_add(1, Ordering::Relaxed);
        } else {
            in_a_row.store(0, Ordering::Relaxed);
        }
        samples.push(Sample { key, took, by, allowed });
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    samples
}

pub(crate) struct Report {
    auditor: Limiter,
    /// How often the store failed, rather than was late or left alone.
    pub(crate) errors: u64,
    samples: Vec<Sample>,
}

impl Report {
    /// That each request was answered in time by its policy.
    pub(crate) fn check(&self, fault: &str, recovery: Duration) {
        let longest = self.samples.iter().map(|sample| sample.took).max().expect("requests");
        println!(
            "{fault}: {} requests, {} of them by policy; the longest took {longest:?}; all was well {recovery:?} after",
            self.samples.len(),
            self.failed(),
        );
        assert!(longest < PATIENCE, "{fault}: a request took {longest:?}");
        for sample in &self.samples {
            let expected = match (sample.by, sample.key % 3) {
                (Some(DecidedBy::Store), _) => sample.allowed,
                (by, 0) => by.is_none(),
                (by, 1) => by == Some(DecidedBy::Nobody) && sample.allowed,
                (by, _) => by == Some(DecidedBy::Local) && sample.allowed,
            };
            assert!(expected, "{fault}: {sample:?}");
        }
    }

    /// That something was wrong.
    pub(crate) fn failed(&self) -> usize {
        self.samples.iter().filter(|sample| sample.by != Some(DecidedBy::Store)).count()
    }

    /// That no request was charged twice; and where the server has forgotten nothing, that each which it
    /// decided was charged once.
    pub(crate) async fn none_was_charged_twice(&self, remembers: bool) {
        let mut unanswered = 0;
        for sample in &self.samples {
            let decision = self.auditor.peek(sample.key, 1).await.expect("a decision");
            let charged = TOKENS - decision.outcomes()[0].remaining();
            assert!(charged <= 1, "{sample:?} was charged {charged} times");
            if sample.by == Some(DecidedBy::Store) {
                assert!(charged == 1 || !remembers, "{sample:?} was not charged");
            } else {
                unanswered += charged;
            }
        }
        println!("{unanswered} were charged whose answer came too late");
    }
}
