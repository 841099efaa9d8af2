//! Requests that keep coming while something is wrong, and what became of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_ratelimit::{DecidedBy, Event, FixedWindow, Limit, Limiter, OnStoreError, RedisStore, Share, StoreErrorKind};

use support::patient::Patient;

/// What each request may take from its key, which no other request has.
const TOKENS: u64 = 10;

/// How long each test lets a request take, beside the longest that the machine stood still. The deadline is 50 ms; what
/// was measured is printed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of so many requests in a row, more than four in five are decided by the store once all is well again: not all,
/// as the machine may have other things to do for longer than the deadline.
const WELL: u64 = 250;

/// When it is taken for not coming back. What was measured is printed.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// How many ask at once.
const TASKS: u64 = 16;

/// How long each task sleeps between two requests.
const PAUSE: Duration = Duration::from_millis(8);

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
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<Vec<Sample>>>,
    pulse: JoinHandle<Duration>,
}

/// What all tasks share.
struct Shared {
    limiters: [Limiter; 3],
    stop: AtomicBool,
    /// How many have asked, and each one's key.
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

    /// For so long, and until there were twice as many requests as tasks: the machine may stand still all the time.
    pub(crate) async fn run(&self, span: Duration) {
        let begun = Instant::now();
        let asked = || self.shared.keys.load(Ordering::Relaxed);
        let enough = asked() + 2 * TASKS;
        tokio::time::sleep(span).await;
        while asked() < enough {
            assert!(begun.elapsed() < span + GIVEN_UP, "nobody is answered");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until all is well again, and says how long that took.
    pub(crate) async fn recovered(&self) -> Duration {
        let returned = Instant::now();
        let counted = || [&self.shared.by_store, &self.shared.by_policy].map(|count| count.load(Ordering::Relaxed));
        loop {
            let before = counted();
            let since = || [counted()[0] - before[0], counted()[1] - before[1]];
            while since().iter().sum::<u64>() < WELL {
                assert!(returned.elapsed() < GIVEN_UP, "it has not recovered");
                tokio::time::sleep(PAUSE).await;
            }
            let [well, not_well] = since();
            if well > 4 * not_well {
                return returned.elapsed();
            }
        }
    }

    /// Ends the load, and reports on it.
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

/// How late a task was woken, at most, that asks for nothing.
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
    /// How often the store failed, rather than was late or left alone.
    pub(crate) errors: u64,
    /// How long the machine stood still, at the longest.
    stood_still: Duration,
    samples: Vec<Sample>,
}

impl Report {
    /// That each request was answered in time by its policy.
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

    /// What a key has left. A look may be taken again: a machine stands still for longer than servers have to reply.
    async fn left(&self, key: u64) -> u64 {
        let begun = Instant::now();
        loop {
            match self.auditor.peek(key, 1).await {
                Ok(decision) => return decision.outcomes()[0].remaining(),
                Err(error) => assert!(begun.elapsed() < GIVEN_UP, "no look at {key}: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// That no request was charged twice; and where the server has forgotten nothing, that each which it
    /// decided was charged once.
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
