//! Requests that keep coming while something is wrong, and what became of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_ratelimit::{DecidedBy, Event, FixedWindow, Limit, Limiter, OnStoreError, RedisStore, Share, StoreErrorKind};

/// What each request may take from its key, which no other request has.
const TOKENS: u64 = 10;

/// How long each test lets a request take, however busy the machine is. The deadline is 50 ms; what was
/// measured is printed.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long all may go on to be wrong after the server's return.
const RECOVERY: Duration = Duration::from_secs(2);

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    key: u64,
    begun: Instant,
    ended: Instant,
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
        let tasks = (0..16).map(|_| tokio::spawn(requests(limiters.clone(), stop.clone(), keys.clone()))).collect();
        let auditor = Limiter::new([limit()]).store(store.clone()).deadline(Duration::from_secs(20));
        Self { auditor, errors, stop, tasks }
    }

    pub(crate) async fn run(&self, span: Duration) {
        tokio::time::sleep(span).await;
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

async fn requests(limiters: Arc<[Limiter; 3]>, stop: Arc<AtomicBool>, keys: Arc<AtomicU64>) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = keys.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = limiters[key as usize % 3].acquire(key, 1).await;
        let ended = Instant::now();
        let (by, allowed) = match &answer {
            Ok(decision) => (Some(decision.decided_by()), decision.is_allowed()),
            Err(_) => (None, false),
        };
        samples.push(Sample { key, begun, ended, by, allowed });
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
    /// That each request was answered in time by its policy, and that all was well again soon after
    /// `returned`.
    pub(crate) fn check(&self, fault: &str, returned: Instant) {
        let longest = self.samples.iter().map(|sample| sample.ended - sample.begun).max().expect("requests");
        let by_store = |sample: &&Sample| sample.by == Some(DecidedBy::Store);
        let decided = self.samples.iter().filter(by_store).count();
        let last_failure = self.samples.iter().filter(|sample| !by_store(sample)).map(|sample| sample.ended).max();
        let well_after = last_failure.map_or(Duration::ZERO, |last| last.saturating_duration_since(returned));
        println!(
            "{fault}: {} requests, {} of them by policy; the longest took {longest:?}; all was well {well_after:?} after",
            self.samples.len(),
            self.samples.len() - decided,
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
        // Not all of them, as this machine may have other things to do for longer than the deadline.
        let late = self.samples.iter().filter(|sample| sample.begun > returned + RECOVERY);
        let (well, not_well): (Vec<&Sample>, Vec<&Sample>) = late.partition(by_store);
        assert!(well.len() > 50 && well.len() > 4 * not_well.len(), "{fault}: {} and {}", well.len(), not_well.len());
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
