//! A load of requests during a fault, with the result of each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_ratelimit::{DecidedBy, Event, FixedWindow, Limit, Limiter, OnStoreError, RedisStore, Share, StoreErrorKind};

use support::patient::Patient;

/// The limit of each request, which has its own key.
const TOKENS: u64 = 10;

/// The longest time that a request may take, in addition to the longest pause of the machine. The deadline is 50 ms.
/// The measured times are printed.
const PATIENCE: Duration = Duration::from_secs(1);

/// After the recovery, the store decides more than four fifths of this many consecutive requests. A loaded machine may
/// delay others beyond the deadline.
const WELL: u64 = 250;

/// The time after which the recovery has failed. The measured time is printed.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of concurrent tasks.
const TASKS: u64 = 16;

/// The pause of each task between two requests.
const PAUSE: Duration = Duration::from_millis(8);

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    key: u64,
    took: Duration,
    /// `None` if the request was rejected because the store failed.
    by: Option<DecidedBy>,
    allowed: bool,
}

/// Tasks that request one decision after the other, each for a new key, under each of the three policies in turn.
pub(crate) struct Load {
    /// For checks after the load, with long timeouts.
    auditor: Limiter,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<Vec<Sample>>>,
    pulse: JoinHandle<Duration>,
}

/// The shared state of all tasks.
struct Shared {
    limiters: [Limiter; 3],
    stop: AtomicBool,
    /// The number of requests, which is also the key of each.
    keys: AtomicU64,
    by_store: AtomicU64,
    by_policy: AtomicU64,
    errors: Arc<AtomicU64>,
}

pub(crate) fn limit() -> Limit {
    Limit::new("limit", FixedWindow::new(TOKENS as u32, Duration::from_secs(86_400)))
}

impl Load {
    pub(crate) fn start(store: &RedisStore) -> Self {
        let policies = [OnStoreError::Reject, OnStoreError::Allow, OnStoreError::DecideLocally(Share::one_of(2))];
        let errors = Arc::new(AtomicU64::new(0));
        let limiters = policies.map(|policy| {
            let count = errors.clone();
            Limiter::builder([limit()])
                .store(store.clone())
                .on_store_error(policy)
                .observe(move |event| match event {
                    Event::StoreFailed { error, .. } if error.kind() == StoreErrorKind::Failed => {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => {}
                })
                .build()
        });
        let [keys, by_store, by_policy] = [const { AtomicU64::new(0) }; 3];
        let shared = Arc::new(Shared { limiters, stop: AtomicBool::new(false), keys, by_store, by_policy, errors });
        let tasks = (0..TASKS).map(|_| tokio::spawn(requests(shared.clone()))).collect();
        let pulse = tokio::spawn(longest_late(shared.clone()));
        let auditor = Limiter::builder([limit()]).patient().store(store.clone()).build();
        Self { auditor, shared, tasks, pulse }
    }

    /// Waits for this time, and until there were twice as many requests as tasks, because the machine may stop for all
    /// of it.
    pub(crate) async fn run(&self, span: Duration) {
        let begun = Instant::now();
        let asked = || self.shared.keys.load(Ordering::Relaxed);
        let enough = asked() + 2 * TASKS;
        tokio::time::sleep(span).await;
        while asked() < enough {
            assert!(begun.elapsed() < span + RECOVERY_TIMEOUT, "no request gets a reply");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for the recovery, and returns the time that it took.
    pub(crate) async fn recovered(&self) -> Duration {
        let returned = Instant::now();
        let counted = || [&self.shared.by_store, &self.shared.by_policy].map(|count| count.load(Ordering::Relaxed));
        loop {
            let before = counted();
            let since = || [counted()[0] - before[0], counted()[1] - before[1]];
            while since().iter().sum::<u64>() < WELL {
                assert!(returned.elapsed() < RECOVERY_TIMEOUT, "the store has not recovered");
                tokio::time::sleep(PAUSE).await;
            }
            let [well, not_well] = since();
            if well > 4 * not_well {
                return returned.elapsed();
            }
        }
    }

    /// Ends the load, and returns a report.
    pub(crate) async fn end(self) -> Report {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        for task in self.tasks {
            samples.extend(task.await.expect("a task"));
        }
        let stood_still = self.pulse.await.expect("a task");
        let errors = self.shared.errors.load(Ordering::Relaxed);
        Report { auditor: self.auditor, errors, stood_still, samples }
    }
}

async fn requests(shared: Arc<Shared>) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let key = shared.keys.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = shared.limiters[key as usize % 3].acquire(key, 1).await;
        let took = begun.elapsed();
        let (by, allowed) = match &answer {
            Ok(decision) => (Some(decision.decided_by()), decision.is_allowed()),
            Err(_) => (None, false),
        };
        let count = if by == Some(DecidedBy::Store) { &shared.by_store } else { &shared.by_policy };
        count.fetch_add(1, Ordering::Relaxed);
        samples.push(Sample { key, took, by, allowed });
        tokio::time::sleep(PAUSE).await;
    }
    samples
}

/// The longest delay in waking an idle task.
async fn longest_late(shared: Arc<Shared>) -> Duration {
    let mut longest = Duration::ZERO;
    while !shared.stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        tokio::time::sleep(PAUSE).await;
        longest = longest.max(begun.elapsed().saturating_sub(PAUSE));
    }
    longest
}

pub(crate) struct Report {
    auditor: Limiter,
    /// The number of failures of the store, without timeouts and requests that did not call it.
    pub(crate) errors: u64,
    /// The longest pause of the machine.
    stood_still: Duration,
    samples: Vec<Sample>,
}

impl Report {
    /// Checks that each request was decided in time by its policy.
    pub(crate) fn check(&self, fault: &str, recovery: Duration) {
        let longest = self.samples.iter().map(|sample| sample.took).max().expect("requests");
        println!(
            "{fault}: {} requests, {} of them by policy; the longest took {longest:?}; all was well {recovery:?} after; \
             the machine stood still for {:?}",
            self.samples.len(),
            self.failed(),
            self.stood_still,
        );
        assert!(longest < PATIENCE + self.stood_still, "{fault}: a request took {longest:?}");
        for sample in &self.samples {
            let expected = match (sample.by, sample.key % 3) {
                (Some(DecidedBy::Store), _) => sample.allowed,
                (by, 0) => by.is_none(),
                (by, 1) => by == Some(DecidedBy::Unlimited) && sample.allowed,
                (by, _) => by == Some(DecidedBy::Local) && sample.allowed,
            };
            assert!(expected, "{fault}: {sample:?}");
        }
    }

    /// Checks that there was a fault.
    pub(crate) fn failed(&self) -> usize {
        self.samples.iter().filter(|sample| sample.by != Some(DecidedBy::Store)).count()
    }

    /// Returns the remaining tokens of a key. A peek is repeated if the machine stops for longer than the timeout.
    async fn left(&self, key: u64) -> u64 {
        let begun = Instant::now();
        loop {
            match self.auditor.peek(key, 1).await {
                Ok(decision) => return decision.outcomes()[0].remaining(),
                Err(error) => assert!(begun.elapsed() < RECOVERY_TIMEOUT, "no peek at {key}: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Checks that no request was charged twice, and if the server has lost no state, that each request that it decided
    /// was charged once.
    pub(crate) async fn none_was_charged_twice(&self, remembers: bool) {
        let mut unanswered = 0;
        for sample in &self.samples {
            let charged = TOKENS - self.left(sample.key).await;
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
