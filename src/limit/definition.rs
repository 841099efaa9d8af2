//! The type of a limit: its name, algorithm, key, cost, condition and policies; and indexes, which find limits that are
//! not checked one by one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fmt, iter};

use smallvec::SmallVec;

use super::body_end::BodyEnd;
use super::cost::CostRule;
use super::spare_capacity::SpareCapacity;
use crate::algorithm::{Algorithm, Penalty};
use crate::error::validation::checked;
use crate::error::{ConfigError, Fault, RulePosition, or_panic};
use crate::key::head::{RequestHead, ResponseHead};
use crate::key::{KeyBuf, KeyError, KeyExtractor, KeyPart, PendingKey};
use crate::select::Condition;

/// A limit: its name, its algorithm, and how it applies to requests.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, key};
///
/// let daily = Limit::new("daily", FixedWindow::per_day(10_000)).by(key::header("x-api-key"));
/// assert_eq!(daily.name(), "daily");
/// ```
#[derive(Clone)]
#[must_use]
pub struct Limit {
    pub(crate) name: Arc<str>,
    pub(super) algorithm: Algorithm,
    pub(crate) key: Option<Arc<dyn KeyExtractor>>,
    /// The position in an index, which then also finds the key.
    pub(crate) position: Option<IndexPosition>,
    /// The path of its descriptor, if it comes from a rules file.
    pub(crate) rule_path: Option<Arc<str>>,
    /// Its position in that file.
    pub(crate) rule_position: Option<Arc<RulePosition>>,
    pub(super) on_missing_key: OnMissingKey,
    pub(crate) cost: Option<CostRule>,
    pub(crate) condition: Option<Arc<dyn Condition>>,
    pub(crate) on_store_error: Option<OnStoreError>,
    /// The percentage that may be used beyond the limit.
    pub(crate) overage: Option<u32>,
    /// The condition of the overage. If there is none, it is always available.
    pub(super) spare_capacity: Option<Arc<dyn SpareCapacity>>,
    pub(crate) is_shadow: bool,
    pub(crate) is_quota: bool,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) is_overridable: bool,
    /// The time within which leased tokens are spent.
    pub(crate) lease: Option<Duration>,
    pub(super) sizes: Vec<Arc<SizeFn>>,
    /// Whether a size is known that has another algorithm or period, so that a key has several states.
    pub(super) has_several_states: Arc<AtomicBool>,
    pub(super) metric_detail: Option<Arc<DetailFn>>,
    pub(crate) actual_cost: Option<Arc<ActualCostFn>>,
    /// The longest time for which a request holds a slot.
    pub(crate) longest_hold: Option<Duration>,
    /// Whether a request holds its slot until the head of its response only.
    pub(crate) is_until_head: bool,
    pub(crate) cost_at_end: Option<Arc<CostAtEndFn>>,
    /// The percentage beyond the limit and its overage that a settlement may charge.
    pub(crate) debt: Option<u32>,
    /// Whether the first cost of a request is an estimate, because its actual cost is known later.
    pub(super) has_estimate: bool,
}

/// Returns the detail of a request, if it has one.
type DetailFn = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;

/// Returns the size of the limit for a request, if it differs from the limit's own.
type SizeFn = dyn Fn(&RequestHead<'_>) -> Option<Algorithm> + Send + Sync;

/// Returns the actual cost of a request by its response, if it differs from the charged cost.
type ActualCostFn = dyn Fn(&ResponseHead<'_>) -> Option<u64> + Send + Sync;

/// Returns the actual cost of a request at the end of its response's body, if it differs from the charged cost.
type CostAtEndFn = dyn Fn(&BodyEnd<'_>) -> Option<u64> + Send + Sync;

impl Limit {
    /// Creates a limit with one bucket for all requests. Set a key with [`by`](Self::by).
    ///
    /// Clients see the name in response headers. It has 1 to 64 printable ASCII characters. Limits with the same name,
    /// algorithm and period share their state, if they use the same store.
    ///
    /// # Panics
    ///
    /// Panics if the name is invalid. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new(name: impl Into<String>, algorithm: impl Into<Algorithm>) -> Self {
        or_panic(Self::try_new(name, algorithm))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, longer than 64 characters, or not printable ASCII.
    pub fn try_new(name: impl Into<String>, algorithm: impl Into<Algorithm>) -> Result<Self, ConfigError> {
        let name = name.into();
        check_name(&name)?;
        let algorithm = algorithm.into();
        Ok(Self {
            name: name.into(),
            algorithm,
            key: None,
            position: None,
            rule_path: None,
            rule_position: None,
            on_missing_key: OnMissingKey::Reject,
            cost: algorithm.is_concurrency.then_some(CostRule::Constant(1)),
            condition: None,
            on_store_error: None,
            overage: None,
            spare_capacity: None,
            is_shadow: false,
            is_quota: false,
            penalty: None,
            is_overridable: false,
            lease: None,
            sizes: Vec::new(),
            has_several_states: Arc::default(),
            metric_detail: None,
            actual_cost: None,
            longest_hold: None,
            is_until_head: false,
            cost_at_end: None,
            debt: None,
            has_estimate: false,
        })
    }

    /// Sets the key: which bucket a request is charged to. See [`key`](crate::key). Replaces any previous key.
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Some(Arc::new(key));
        self.position = None;
        self
    }

    /// Sets the policy for requests without a key. Defaults to [`OnMissingKey::Reject`].
    pub fn on_missing_key(mut self, policy: OnMissingKey) -> Self {
        self.on_missing_key = policy;
        self
    }

    /// Sets which requests the limit applies to. Defaults to all. Other requests are neither charged nor denied, and
    /// their responses don't show the limit. Replaces any previous condition; see [`when`](crate::when) for how to
    /// combine several.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, key, when};
    ///
    /// let friends = Limit::new("friends", FixedWindow::per_day(150)).by(key::peer_ip()).when(when::route("/friends"));
    ///
    /// let guests = Limit::new("guests", FixedWindow::per_day(10))
    ///     .by(key::peer_ip())
    ///     .when(when::from_fn(|head| head.header("authorization").is_none()));
    /// # let _ = (friends, guests);
    /// ```
    pub fn when(mut self, condition: impl Condition) -> Self {
        self.condition = Some(Arc::new(condition));
        self
    }

    /// Sets the cost of each request for this limit, in tokens. Takes precedence over the cost of the layer or the
    /// route.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(CostRule::Constant(cost));
        self
    }

    /// Computes the cost of a request for this limit, in tokens. Takes precedence over the cost of the layer or the
    /// route.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // One megabyte per second, by the announced length. A body of unknown length costs the whole burst.
    /// let upload = Limit::new("upload", TokenBucket::per_second(1_000_000).burst(50_000_000))
    ///     .by(key::peer_ip())
    ///     .cost_by(|head| head.header("content-length").and_then(|bytes| bytes.parse().ok()).unwrap_or(50_000_000));
    /// # let _ = upload;
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(CostRule::Closure(Arc::new(cost)));
        self
    }

    /// Sets the policy of this limit for failures of the store. Defaults to the policy of the layer or limiter.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, OnStoreError, RateLimitLayer, TokenBucket, key};
    ///
    /// // While the store fails, bursts are allowed uncounted, but payments are rejected.
    /// let limits = RateLimitLayer::new([
    ///     Limit::new("burst", TokenBucket::per_second(100)).by(key::peer_ip()).on_store_error(OnStoreError::Allow),
    ///     Limit::new("payments", FixedWindow::per_day(5)).by(key::header("x-user")),
    /// ]);
    /// # let _ = limits;
    /// ```
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.on_store_error = Some(policy);
        self
    }

    /// Splits the metrics of the limit by a detail of the request, such as its plan. `None` adds none.
    ///
    /// `MetricsRecorder` adds it to its metrics as the label `detail`. For each name of a limit, it keeps at most 100
    /// details of at most 128 bytes, and counts others as `other`, so that the number of series stays bounded whatever
    /// clients send. Other recorders get the detail by [`LimitRecord::detail`](crate::LimitRecord::detail), and have to
    /// bound the number and the length of the details themselves.
    ///
    /// The closure is called inline for each request that the limit applies to; it must be fast and must not block.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// let limit = Limit::new("burst", TokenBucket::per_second(10))
    ///     .by(key::header("x-api-key"))
    ///     .metric_detail(|head| Some(head.header("x-plan")?.to_owned()));
    /// # let _ = limit;
    /// ```
    pub fn metric_detail(self, detail: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { metric_detail: Some(Arc::new(detail)), ..self }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Describes the key of a request, for explanations.
    pub(crate) fn describe_key(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        match (&self.position, &self.key) {
            (Some(at), _) => at.index.describe_key(at.position, head),
            (None, Some(extractor)) => extractor.describe(head),
            (None, None) => Vec::new(),
        }
    }

    /// Returns what happens to a request whose key is missing for this reason. A limit in shadow mode rejects nothing.
    pub(crate) fn missing_key_policy(&self, error: KeyError) -> OnMissingKey {
        match self.on_missing_key {
            OnMissingKey::Skip | OnMissingKey::Share if error != KeyError::Ambiguous => self.on_missing_key,
            _ if self.is_shadow => OnMissingKey::Skip,
            _ => OnMissingKey::Reject,
        }
    }

    /// Returns the penalty. A limit in shadow mode has none, and one in quota mode can't have any.
    #[inline]
    pub(super) fn enforced_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref().filter(|_| !self.is_shadow)
    }

    /// Returns whether responses determine the actual costs of requests.
    pub(crate) fn is_settled(&self) -> bool {
        self.actual_cost.is_some() || self.cost_at_end.is_some()
    }

    /// Returns an error if the limit needs a request.
    pub(crate) fn check_needs_no_request(&self) -> Result<(), ConfigError> {
        let needs = [
            (self.key.is_some() || self.position.is_some(), "key"),
            (self.cost.is_some() && !self.algorithm.is_concurrency, "cost"),
            (self.condition.is_some(), "condition"),
            (self.is_settled(), "actual cost"),
            (!self.sizes.is_empty(), "size"),
            (self.metric_detail.is_some(), "metric detail"),
        ];
        let Some((_, what)) = needs.into_iter().find(|(is_needed, _)| *is_needed) else { return Ok(()) };
        Err(ConfigError::new(format!(
            "the limit {:?} takes its {what} from a request, but a `Limiter` has none: decide it where you call \
             `acquire`, or use a `RateLimitLayer`",
            self.name
        )))
    }

    /// Returns an error if the limit needs a response.
    pub(crate) fn check_needs_no_response(&self) -> Result<(), ConfigError> {
        if !self.is_settled() {
            return Ok(());
        }
        Err(ConfigError::new(format!(
            "the limit {:?} takes its actual cost from a response, but a `RequestLimiter` has none: refund the receipt \
             of a decision, or use a `RateLimitLayer`",
            self.name
        )))
    }

    /// Returns an error if the limit can never allow `cost`.
    pub(super) fn check_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let capacity = self.leased_size(self.algorithm).with_overage(self.overage.unwrap_or_default()).hard_capacity();
        if cost > capacity && self.sizes.is_empty() && !self.is_overridable {
            let own_cost = match self.rule_position {
                None => "give the limit a cost of its own with `Limit::cost`",
                Some(_) => "set its field `cost`",
            };
            let message = format!(
                "a cost of {cost} can never pass the limit {:?}, which holds {capacity}: lower the cost, raise the \
                 limit, or {own_cost}",
                self.name
            );
            return Err(ConfigError { message, rule: self.rule_position.clone() });
        }
        Ok(())
    }
}

/// Returns an error unless HTTP headers can carry a limit's name.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    if name.is_empty() {
        return Err(ConfigError::new("a limit's name is empty: give it 1 to 64 characters"));
    }
    let length = name.chars().count();
    if length > 64 {
        return Err(ConfigError::new(format!("the limit's name {name:?} has {length} characters: use at most 64")));
    }
    if let Some(character) = name.chars().find(|character| !matches!(character, ' '..='~')) {
        return Err(ConfigError::new(format!(
            "the limit's name {name:?} has the character {character:?}: use ASCII letters, digits, punctuation and \
             spaces, which HTTP headers can carry"
        )));
    }
    Ok(())
}

/// The policy of a limit for requests without a key. Set it with
/// [`Limit::on_missing_key`](crate::Limit::on_missing_key).
///
/// It does not apply to [ambiguous](crate::key::KeyError::Ambiguous) keys: an enforced limit always rejects those
/// requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request: with 400, or with 500 if the server provides the key for no request.
    #[default]
    Reject,
    /// Does not apply the limit to the request.
    Skip,
    /// Charges one bucket for all requests without a key: that of [`key::Shared`](crate::key::Shared).
    Share,
}

/// The policy for requests that the store does not decide: because it fails, does not reply before the deadline, or is
/// skipped while its [circuit breaker](crate::CircuitBreaker) is open.
///
/// The limits of one request can have different policies:
///
/// - If any of them has the policy `Reject`, the request is rejected, and nothing is charged locally.
/// - Otherwise all limits with the policy `DecideLocally` decide together, all or nothing.
/// - Limits with the policy `Allow` are skipped: they neither deny nor charge. If one of them is in
///   [quota mode](Limit::quota_mode), the others in quota mode deny nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Rejects requests with 503 and `Retry-After`.
    #[default]
    Reject,
    /// Forwards requests without counting them.
    Allow,
    /// Decides in the memory of this process, by a share of each limit.
    ///
    /// The table holds up to 100,000 keys, and is allocated when it is first needed. Keys start unused. If the store
    /// fails again later, a key continues with its local state from the previous outage. Usage belongs to the name, the
    /// algorithm and the period of the limit, and to the period of the share, so that most replacements of
    /// [live limits](crate::LiveLimits) keep it. [Overrides](crate::LimitHandle#overrides) do not apply.
    ///
    /// Denied requests get the usual response. A cost that fits the limit but exceeds the share is rejected as by
    /// `Reject`, since only the store could ever allow it. `RateLimit-Policy` and similar headers describe the whole
    /// limit, while the remaining tokens are those of the share. Requests that are allowed locally are not charged to
    /// the store later.
    DecideLocally(Share),
}

/// The part of a limit that each process may allow while the shared store does not decide.
///
/// - A window's limit is divided and rounded down, so that all processes together stay within the limit. If the result
///   is less than 1, the share is 1 in a longer period with the same average.
/// - A bucket's capacity is divided and rounded down, to at least 1. Its rate is divided exactly.
///
/// Periods and intervals are at most 366 days. A share of 1 in that time can exceed its part of the limit. The share of
/// a calendar window has as many whole windows as needed.
///
/// ```
/// use tower_ratelimit::{Limit, OnStoreError, RateLimitLayer, Share, TokenBucket};
///
/// // Four processes: while the store fails, each allows 25 a second, 50 at once.
/// const SHARE: Share = Share::one_of(4);
/// let limits = RateLimitLayer::builder([Limit::new("burst", TokenBucket::per_second(100).burst(200))])
///     .on_store_error(OnStoreError::DecideLocally(SHARE))
///     .build();
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Share {
    /// The number of processes.
    pub(crate) parts: u32,
}

impl Share {
    /// Creates the share of one process, of `processes` in total.
    ///
    /// # Panics
    ///
    /// Panics if `processes` is 0. In a constant, this is a compile-time error. [`try_one_of`](Self::try_one_of)
    /// returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn one_of(processes: u32) -> Self {
        checked!(Self::of(processes))
    }

    /// Fallible version of [`one_of`](Self::one_of).
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is 0.
    pub fn try_one_of(processes: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(processes)?)
    }

    /// Creates a share of the whole limit, so that each process allows as much as the store would.
    #[must_use]
    pub const fn whole() -> Self {
        Self { parts: 1 }
    }

    const fn of(processes: u32) -> Result<Self, Fault> {
        let message = "a limit is shared by 0 processes: count all processes that share it, including this one";
        if processes == 0 { Err(Fault::new(message)) } else { Ok(Self { parts: processes }) }
    }
}

/// Finds the limits that apply to a request, among limits that are numbered by position.
pub(crate) trait LimitIndex: Send + Sync + 'static {
    /// Calls `on_match` with the position of each limit that matches the request, in ascending order. A limit replaces
    /// others only if `limit` returns it, and the request has a key for it.
    ///
    /// Unless `finds_all` is set, limits without an effect are left out, and so are those that a value may concern
    /// after the first that rejects the request.
    ///
    /// # Errors
    ///
    /// Returns the position of a value that has to be completed first.
    fn find<'a>(
        &self,
        head: &RequestHead<'_>,
        values: &mut Values,
        limit: &LimitAt<'a>,
        finds_all: bool,
        on_match: &mut OnMatch<'_>,
    ) -> Result<(), usize>;

    /// Describes the key of the limit at a position, for explanations.
    fn describe_key(&self, position: usize, head: &RequestHead<'_>) -> Vec<KeyPart>;

    /// Returns the maximum number of matches for one request, among the positions for which `limit` returns one.
    fn max_matches(&self, limit: &LimitAt<'_>) -> usize;
}

/// The values that the extractors of an index find in one request. Each extractor runs at most once, and only if its
/// value matters.
pub(crate) type Values = SmallVec<[Value; 8]>;

#[cfg_attr(not(feature = "rules"), allow(dead_code, reason = "only rules files have an index"))]
pub(crate) enum Value {
    Extracted(Result<KeyBuf, KeyError>),
    Pending(PendingKey),
    NotExtracted,
}

impl Value {
    /// Waits for a pending value.
    pub(crate) async fn complete(&mut self) {
        if let Self::Pending(key) = self {
            *self = Self::Extracted(key.await);
        }
    }
}

/// The key of a limit that matches a request, unless the key is missing. `None` if another match replaces the limit.
pub(crate) type Match<K> = Option<Result<K, KeyError>>;

/// Returns the limit at a position, or `None` if the limiter lacks the limit or its condition does not hold.
pub(crate) type LimitAt<'a> = dyn Fn(usize) -> Option<&'a Limit> + 'a;

/// Receives the position of a limit that matches.
pub(crate) type OnMatch<'a> = dyn FnMut(usize, Match<&KeyBuf>) + 'a;

/// The position of a limit in an index.
#[derive(Clone)]
pub(crate) struct IndexPosition {
    pub(crate) index: Arc<dyn LimitIndex>,
    pub(crate) position: usize,
}

/// Yields the limit itself, so that a single limit is accepted instead of a list.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
///
/// let limits = RateLimitLayer::new(Limit::new("daily", FixedWindow::per_day(10_000)));
/// # let _ = limits;
/// ```
impl IntoIterator for Limit {
    type Item = Self;
    type IntoIter = iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("name", &self.name).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}
