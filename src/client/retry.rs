//! The retry policy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::Policy;
use tower::retry::budget::{Budget, TpsBudget};

use super::answer::{Wait, rejection};
use super::checked_time;
use super::upstreams::Upstreams;
use crate::key::KeyExtractor;
use crate::recorder::{Event, Recorder, Recorders, report};
use crate::time::random_up_to;

/// A policy for [`tower::retry`] that repeats requests which an upstream has [rejected](super#rejections).
///
/// It waits for the time that the upstream asks for, and then for a random part of the back-off, so that clients that
/// were rejected together don't come back together. Without a time, it waits for a random part of the back-off only.
/// The [back-off](Self::backoff) is a second at first, and doubles with each retry, up to [`max_wait`](Self::max_wait).
///
/// It returns the rejection as it is if
///
/// - the upstream asks for a wait of more than [`max_wait`](Self::max_wait), or forbids retries;
/// - the request has been sent [`max_attempts`](Self::max_attempts) times, or the wait would exceed
///   [`max_total`](Self::max_total);
/// - the request's method is not idempotent (`POST`, `PATCH`), unless you [allow](Self::all_methods) it;
/// - the request's body can't be [cloned](Self::with_clone_body);
/// - the [budget](Self::budget) of the upstream is exhausted.
///
/// It returns errors of the service, too. A retry keeps the version, the headers and the extensions of the request.
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
#[must_use = "a policy does nothing until it is applied to a service"]
pub struct RetryPolicy<B> {
    settings: Arc<Settings>,
    clone_body: fn(&B) -> Option<B>,
    /// The number of rejections of this request so far.
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

impl<B: Clone> RetryPolicy<B> {
    /// Creates a policy for bodies that can always be cloned.
    pub fn new() -> Self {
        Self::with_clone_body(|body| Some(body.clone()))
    }
}

impl<B: Clone> Default for RetryPolicy<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> RetryPolicy<B> {
    /// Creates a policy with a function that clones a body. If it returns `None`, the request is sent once.
    ///
    /// A body of reqwest can be cloned if it is in memory: `|body| Some(body.as_bytes()?.to_vec().into())`.
    pub fn with_clone_body(clone_body: fn(&B) -> Option<B>) -> Self {
        let settings = Settings {
            max_attempts: 5,
            max_wait: Duration::from_secs(60),
            max_total: Duration::from_secs(120),
            backoff: Duration::from_secs(1),
            all_methods: false,
            budget: (10, 5),
            budgets: Upstreams::new(),
            recorders: Recorders::new(),
        };
        Self { settings: Arc::new(settings), clone_body, attempts: 0, began: Instant::now() }
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the maximum number of attempts, including the first. Defaults to 5.
    ///
    /// # Panics
    ///
    /// Panics if `attempts` is less than 2.
    #[track_caller]
    pub fn max_attempts(self, attempts: u32) -> Self {
        assert!(attempts >= 2, "max_attempts is {attempts}: use at least 2, or leave the policy out");
        self.set(|settings| settings.max_attempts = attempts)
    }

    /// Sets the longest wait that an upstream may ask for, and the longest back-off, which comes on top. Defaults to 60
    /// seconds.
    ///
    /// # Panics
    ///
    /// Panics if `wait` is 0 or longer than a day.
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
    #[track_caller]
    pub fn backoff(self, first: Duration) -> Self {
        let first = checked_time("backoff", first);
        self.set(|settings| settings.backoff = first)
    }

    /// Retries requests of all methods, not only of idempotent ones. gRPC needs this, because its requests are `POST`.
    ///
    /// A rate limiter in front of a service rejects a request before the service has processed it. Other servers may
    /// reject it halfway, so that a retry repeats what was done.
    pub fn all_methods(self) -> Self {
        self.set(|settings| settings.all_methods = true)
    }

    /// Sets the budget of retries to each upstream, over 10 seconds: `min_per_second`, and one more for every
    /// `responses` that are no rejections. Only responses to requests that could be repeated count. Defaults to 10 a
    /// second, and one for every 5 responses.
    ///
    /// The policy remembers the budgets of 1,000 upstreams. Then it forgets the one that was used least recently. With
    /// other settings, it begins anew.
    ///
    /// # Panics
    ///
    /// Panics if `min_per_second` is more than 1,000,000, or `responses` is not 1 to 1,000.
    #[track_caller]
    pub fn budget(self, min_per_second: u32, responses: u32) -> Self {
        assert!(min_per_second <= 1_000_000, "min_per_second is {min_per_second}: use at most 1,000,000");
        assert!((1..=1_000).contains(&responses), "responses is {responses}: use 1 to 1,000");
        self.set(|settings| {
            settings.budget = (min_per_second, responses);
            settings.budgets = settings.budgets.without_states();
        })
    }

    /// Sets the key that tells upstreams apart. Defaults to the host and port of the URL. Requests without a key share
    /// one upstream. With another key, all budgets begin anew.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[track_caller]
    pub fn by(self, key: impl KeyExtractor) -> Self {
        self.set(|settings| settings.budgets = Upstreams::by(key))
    }

    /// Adds a recorder of [`Event::CallRetried`] and [`Event::RetryBudgetExhausted`].
    pub fn recorder(self, recorder: impl Recorder) -> Self {
        self.set(|settings| settings.recorders.push(Arc::new(recorder)))
    }
}

impl Settings {
    fn budget<B>(&self, request: &Request<B>) -> Arc<TpsBudget> {
        let (min_per_second, responses) = self.budget;
        // `TpsBudget` rounds the reciprocal of this share down.
        let share = 1.0 / (responses as f32 + 0.5);
        let create = || TpsBudget::new(Duration::from_secs(10), min_per_second, share);
        self.budgets.of(request, create, |_| false)
    }

    /// Returns the wait before a retry, unless the upstream or the settings forbid it.
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
        let Some(asked) = rejection(response) else {
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
