//! The retry policy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::Policy;
use tower::retry::budget::{Budget, TpsBudget};

use super::answer::{Wait, denial};
use super::upstreams::Upstreams;
use crate::key::KeyExtractor;
use crate::recorder::{Event, Recorder, Recorders, report};
use crate::time::random_up_to;

/// A policy for [`tower::retry`] that repeats requests that a server has [denied](super#denials).
///
/// It waits for the time that the server asks for, if there is one, and then for a random part of the back-off, so that
/// clients that were denied together don't come back together. The [back-off](Self::backoff) is a second at first, and
/// doubles with each retry, up to [`max_wait`](Self::max_wait).
///
/// The response is returned, denied or not, if
///
/// - the server asks for a longer wait than `max_wait`, or tells the client not to retry;
/// - the request has been sent [`max_attempts`](Self::max_attempts) times, or the wait would exceed
///   [`max_total`](Self::max_total);
/// - its method is not idempotent (`POST`, `PATCH`), unless you [allow](Self::all_methods) it;
/// - its body can't be [cloned](Self::cloning_body): it is sent once;
/// - the [budget](Self::budget) of the upstream is exhausted.
///
/// Errors of the service are returned, too. A retry keeps the version, the headers and the extensions of the request.
///
/// Clones share their budgets. `B` is the type of bodies. Needs a Tokio runtime with its timers enabled.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::client::RetryPolicy;
///
/// let policy = RetryPolicy::<String>::new().max_attempts(3).max_wait(Duration::from_secs(10));
/// # let _ = policy;
/// ```
pub struct RetryPolicy<B> {
    settings: Arc<Settings>,
    clone_body: fn(&B) -> Option<B>,
    /// The number of responses to this request so far.
    attempts: u32,
    /// When this request was first sent.
    began: Instant,
}

#[derive(Clone)]
struct Settings {
    max_attempts: u32,
    max_wait: Duration,
    max_total: Duration,
    backoff: Duration,
    all_methods: bool,
    budget: (u32, u32),
    budgets: Upstreams<TpsBudget>,
    recorders: Recorders,
}

/// The longest time that a setting can have.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Returns `time` if it is positive and at most a day.
#[track_caller]
pub(super) fn checked_time(name: &str, time: Duration) -> Duration {
    assert!(!time.is_zero() && time <= LONGEST, "{name} is {time:?}: use more than 0, and at most a day");
    time
}

impl<B: Clone> RetryPolicy<B> {
    /// Creates a policy for bodies that can always be cloned.
    #[must_use]
    pub fn new() -> Self {
        Self::cloning_body(|body| Some(body.clone()))
    }
}

impl<B: Clone> Default for RetryPolicy<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> RetryPolicy<B> {
    /// Creates a policy with a function that clones a body. A request for whose body it returns `None` is sent once.
    ///
    /// A body of reqwest can be cloned if it is in memory: `|body| Some(body.as_bytes()?.to_vec().into())`.
    #[must_use]
    pub fn cloning_body(clone_body: fn(&B) -> Option<B>) -> Self {
        let settings = Settings {
            max_attempts: 5,
            max_wait: Duration::from_secs(60),
            max_total: Duration::from_secs(120),
            backoff: Duration::from_secs(1),
            all_methods: false,
            budget: (10, 20),
            budgets: Upstreams::new(),
            recorders: Recorders::new(),
        };
        Self { settings: Arc::new(settings), clone_body, attempts: 0, began: Instant::now() }
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets how often a request is sent at most, including the first time. Defaults to 5.
    ///
    /// # Panics
    ///
    /// Panics if `attempts` is less than 2.
    #[must_use]
    #[track_caller]
    pub fn max_attempts(self, attempts: u32) -> Self {
        assert!(attempts >= 2, "max_attempts is {attempts}: use at least 2, or leave the policy out");
        self.set(|settings| settings.max_attempts = attempts)
    }

    /// Sets the longest wait that a server may ask for. Defaults to 60 seconds. It also bounds the back-off, which is
    /// added.
    ///
    /// # Panics
    ///
    /// Panics if `wait` is 0 or longer than a day.
    #[must_use]
    #[track_caller]
    pub fn max_wait(self, wait: Duration) -> Self {
        let wait = checked_time("max_wait", wait);
        self.set(|settings| settings.max_wait = wait)
    }

    /// Sets the longest time from the first attempt to the last one. Defaults to 2 minutes.
    ///
    /// # Panics
    ///
    /// Panics if `time` is 0 or longer than a day.
    #[must_use]
    #[track_caller]
    pub fn max_total(self, time: Duration) -> Self {
        let time = checked_time("max_total", time);
        self.set(|settings| settings.max_total = time)
    }

    /// Sets the longest back-off of the first retry. Defaults to a second.
    ///
    /// # Panics
    ///
    /// Panics if `first` is 0 or longer than a day.
    #[must_use]
    #[track_caller]
    pub fn backoff(self, first: Duration) -> Self {
        let first = checked_time("backoff", first);
        self.set(|settings| settings.backoff = first)
    }

    /// Also retries methods that are not idempotent. Needed for gRPC, whose requests are `POST`.
    ///
    /// A rate limiter in front of a service denies a request before the service has processed it.
    #[must_use]
    pub fn all_methods(self) -> Self {
        self.set(|settings| settings.all_methods = true)
    }

    /// Sets the retries to each upstream within 10 seconds: at most `min_per_second` on average, and in addition,
    /// `percent` of the responses that are not denials. Defaults to 10 a second and 20 percent.
    ///
    /// At most the 1,000 upstreams that were used last are remembered.
    ///
    /// # Panics
    ///
    /// Panics if both are 0, if `min_per_second` is more than 1,000,000, or if `percent` is more than 100.
    #[must_use]
    #[track_caller]
    pub fn budget(self, min_per_second: u32, percent: u32) -> Self {
        assert!(min_per_second > 0 || percent > 0, "the budget allows no retries: use more, or leave the policy out");
        assert!(min_per_second <= 1_000_000, "min_per_second is {min_per_second}: use at most 1,000,000");
        assert!(percent <= 100, "percent is {percent}: use at most 100");
        self.set(|settings| settings.budget = (min_per_second, percent))
    }

    /// Sets the key that tells upstreams apart. Defaults to the host and port of the URL.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[must_use]
    #[track_caller]
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        Arc::make_mut(&mut self.settings).budgets.set_key(key);
        self
    }

    /// Adds a recorder of [`Event::CallRetried`] and [`Event::RetryBudgetExhausted`].
    #[must_use]
    pub fn recorder(self, recorder: impl Recorder) -> Self {
        self.set(|settings| settings.recorders.push(Arc::new(recorder)))
    }
}

impl Settings {
    fn budget<B>(&self, request: &Request<B>) -> Arc<TpsBudget> {
        let (min_per_second, percent) = self.budget;
        let create = || TpsBudget::new(Duration::from_secs(10), min_per_second, percent as f32 / 100.0);
        self.budgets.of(request, create)
    }

    /// Returns the wait before a retry, unless the server or the settings forbid it.
    fn wait(&self, attempts: u32, began: Instant, asked: Wait) -> Option<Duration> {
        let asked = match asked {
            Wait::AtLeast(wait) if wait <= self.max_wait => wait,
            Wait::Unspecified => Duration::ZERO,
            _ => return None,
        };
        let backoff = self.backoff.saturating_mul(1 << (attempts - 1).min(31)).min(self.max_wait);
        let wait = asked + random_up_to(backoff);
        (attempts < self.max_attempts && began.elapsed() + wait <= self.max_total).then_some(wait)
    }
}

impl<B, R, E> Policy<Request<B>, Response<R>, E> for RetryPolicy<B> {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Sleep> {
        let response = result.as_ref().ok()?;
        let settings = &self.settings;
        let budget = settings.budget(request);
        let Some(asked) = denial(response) else {
            budget.deposit();
            return None;
        };
        self.attempts += 1;
        let wait = settings.wait(self.attempts, self.began, asked)?;
        if !budget.withdraw() {
            report(&settings.recorders, &Event::RetryBudgetExhausted);
            return None;
        }
        report(&settings.recorders, &Event::CallRetried { wait });
        Some(sleep(wait))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        if self.attempts == 0 {
            self.began = Instant::now();
        }
        if !self.settings.all_methods && !request.method().is_idempotent() {
            return None;
        }
        let mut clone = Request::new((self.clone_body)(request.body())?);
        *clone.method_mut() = request.method().clone();
        *clone.uri_mut() = request.uri().clone();
        *clone.version_mut() = request.version();
        *clone.headers_mut() = request.headers().clone();
        *clone.extensions_mut() = request.extensions().clone();
        Some(clone)
    }
}

// Without bounds on `B`.
impl<B> Clone for RetryPolicy<B> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), ..*self }
    }
}

impl<B> fmt::Debug for RetryPolicy<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy").finish_non_exhaustive()
    }
}
