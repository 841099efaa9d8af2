//! One limit: a name, an algorithm, and whose bucket is charged how much.

#[cfg(feature = "rules")]
mod document;
mod following;
mod limits;
mod live;
mod search;
mod threshold;

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "rules")]
pub(crate) use self::document::{Document, Parse};
pub(crate) use self::following::Following;
pub(crate) use self::limits::{Limits, are_plain};
pub use self::live::LiveLimits;
pub(crate) use self::live::Set;
use self::search::Place;
pub(crate) use self::search::Searching;
#[cfg(feature = "rules")]
pub(crate) use self::search::{Meet, Search};
use self::threshold::{Instead, Overage};
use crate::algorithm::{Algorithm, Penalty};
use crate::cost::Cost;
use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::key::KeyExtractor;
use crate::request::RequestHead;
use crate::resilience::OnStoreError;
use crate::response::ResponseHead;
use crate::when::Condition;

/// One limit.
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
    name: Arc<str>,
    algorithm: Algorithm,
    key: Option<Arc<dyn KeyExtractor>>,
    /// Where it is looked for with others, which also finds its key.
    place: Option<Place>,
    missing: OnMissingKey,
    cost: Option<Cost>,
    when: Option<Arc<dyn Condition>>,
    on_store_error: Option<OnStoreError>,
    overage: Option<Overage>,
    is_shadow: bool,
    is_quota: bool,
    penalty: Option<Penalty>,
    is_overridable: bool,
    instead: Vec<Arc<Instead>>,
    actual_cost: Option<Arc<ActualCost>>,
}

/// What a request has cost, by its response, if that says so.
type ActualCost = dyn Fn(&ResponseHead<'_>) -> Option<u64> + Send + Sync;

/// What becomes of a request that has no key for a limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// It is refused.
    #[default]
    Reject,
    /// This limit does not apply to it.
    Skip,
    /// It shares one bucket with all others that have none.
    Share,
}

/// The most characters of a name.
const LONGEST_NAME: usize = 64;

impl Limit {
    /// A limit called `name`, which clients see in headers: 1 to 64 characters of ASCII, none of
    /// them a control character. It has one bucket for all requests, unless [`by`](Self::by) says
    /// whose to charge.
    ///
    /// On one store, limits of the same name, algorithm and period share what their keys have used.
    ///
    /// # Panics
    ///
    /// When the name can't stand in a header. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new(name: impl Into<String>, algorithm: impl Into<Algorithm>) -> Self {
        or_panic(Self::try_new(name, algorithm))
    }

    /// Like [`new`](Self::new), for a name that is not known to be right.
    ///
    /// # Errors
    ///
    /// When the name is empty, longer than 64 characters, or has one that a header can't carry.
    pub fn try_new(name: impl Into<String>, algorithm: impl Into<Algorithm>) -> Result<Self, ConfigError> {
        let name = name.into();
        if name.is_empty() {
            return Err(ConfigErrorKind::NameEmpty.into());
        }
        if name.chars().count() > LONGEST_NAME {
            return Err(ConfigErrorKind::NameTooLong { name }.into());
        }
        if let Some(character) = name.chars().find(|character| !matches!(character, ' '..='~')) {
            return Err(ConfigErrorKind::NameCharacter { name, character }.into());
        }
        let algorithm = algorithm.into();
        Ok(Self {
            name: name.into(),
            algorithm,
            key: None,
            place: None,
            missing: OnMissingKey::Reject,
            cost: None,
            when: None,
            on_store_error: None,
            overage: None,
            is_shadow: false,
            is_quota: false,
            penalty: None,
            is_overridable: false,
            instead: Vec::new(),
            actual_cost: None,
        })
    }

    /// Whose bucket is charged: see [`key`](crate::key).
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Some(Arc::new(key));
        self.place = None;
        self
    }

    /// Looked for with others: those that have the same `search`.
    #[cfg(feature = "rules")]
    pub(crate) fn at(mut self, search: Arc<dyn Search>, index: usize) -> Self {
        self.place = Some(Place { search, index });
        self
    }

    /// What becomes of a request that has no key: refused, unless this says otherwise.
    pub fn on_missing_key(mut self, missing: OnMissingKey) -> Self {
        self.missing = missing;
        self
    }

    /// Which requests it applies to: all, unless this says otherwise. Others it neither charges nor
    /// denies, nor are they told of it. Of two conditions, the last counts: see
    /// [`when`](crate::when) for how they combine.
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
        self.when = Some(Arc::new(condition));
        self
    }

    /// What each request takes from this limit, in tokens, whatever the layer or the route says a
    /// request costs.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(Cost::Constant(cost));
        self
    }

    /// What a request takes from this limit, in tokens, whatever the layer or the route says it
    /// costs.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // A megabyte a second, by what clients announce.
    /// let upload = Limit::new("upload", TokenBucket::per_second(1_000_000).burst(50_000_000))
    ///     .by(key::peer_ip())
    ///     .cost_by(|head| head.header("content-length").and_then(|bytes| bytes.parse().ok()).unwrap_or(1));
    /// # let _ = upload;
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Cost::By(Arc::new(cost)));
        self
    }

    /// What becomes of requests when the store can't decide, as far as this limit is concerned, whatever
    /// the layer or the limiter says.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, OnStoreError, RateLimitLayer, TokenBucket, key};
    ///
    /// // While the store fails, bursts go on uncounted, but nobody pays.
    /// let limits = RateLimitLayer::new([
    ///     Limit::new("burst", TokenBucket::per_second(100)).by(key::peer_ip()).on_store_error(OnStoreError::Allow),
    ///     Limit::new("payments", FixedWindow::per_day(5)).by(key::header("x-user")).on_missing_key(OnMissingKey::Skip),
    /// ]);
    /// # use tower_ratelimit::OnMissingKey;
    /// # let _ = limits;
    /// ```
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.on_store_error = Some(policy);
        self
    }

    /// Which requests count, by their responses: all, unless this says otherwise. Each is charged before
    /// it goes on, so that no race admits more, and given back what still counts of that if its response
    /// is none of these.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_ratelimit::{Limit, SlidingLog, key};
    ///
    /// // Five failed logins an hour, from each address.
    /// let logins = Limit::new("failed-logins", SlidingLog::per_hour(5))
    ///     .by(key::peer_ip())
    ///     .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    /// # let _ = logins;
    /// ```
    ///
    /// Until it has its response, a request counts: of ten that come at once, five are let in, and the
    /// others are denied even if those five will turn out not to count. Where there is no response,
    /// because the handler panics, the service fails or the client hangs up, it counts too. What a
    /// [`Permit`](crate::Permit) has charged it more is given back with the rest.
    ///
    /// A store that answers at once is given it back before the response goes on, whose headers say so.
    /// Others, such as Redis, are told in the background, for which no response waits: headers then tell
    /// where the limit stood when the request was let in. Of a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue), only the last slot can be given back.
    ///
    /// Of this and [`settle_by`](Self::settle_by), the one said last counts. A limit without a response,
    /// such as a [`Limiter`](crate::Limiter)'s, can't have either.
    pub fn count_if(self, counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.settle_by(move |response| if counts(response) { None } else { Some(0) })
    }

    /// What a request has cost after all, in tokens, by its response: `None` is what it was charged.
    /// Less is given back, as far as it still counts; more is charged as far as there is room, and
    /// [`Event::Shortfall`](crate::Event::Shortfall) tells an observer what there was no room for. Neither
    /// changes the response. When, and what headers say of it, is as with [`count_if`](Self::count_if);
    /// what becomes known later still, with the last of a body, a [`Permit`](crate::Permit) can settle.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // Tokens of a language model: 1,000 are reserved, and what was used is told by the handler.
    /// let tokens = Limit::new("tokens", TokenBucket::per_minute(100_000))
    ///     .by(key::header("x-api-key"))
    ///     .cost(1_000)
    ///     .settle_by(|response| response.header("x-tokens-used")?.parse().ok());
    /// # let _ = tokens;
    /// ```
    pub fn settle_by(mut self, actual: impl Fn(&ResponseHead<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.actual_cost = Some(Arc::new(actual));
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it decides.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub(crate) fn extractor(&self) -> Option<&dyn KeyExtractor> {
        self.key.as_deref()
    }

    /// Whether it takes its key from a request.
    fn is_keyed(&self) -> bool {
        self.key.is_some() || self.place.is_some()
    }

    /// What of it there has to be a request for.
    pub(crate) fn needs_of_a_request(&self) -> Option<&'static str> {
        match self {
            _ if self.is_keyed() => Some("key"),
            _ if self.cost.is_some() => Some("cost"),
            _ if self.when.is_some() => Some("condition"),
            _ if self.actual_cost.is_some() => Some("actual cost"),
            _ if self.has_other_sizes() => Some("size"),
            _ => None,
        }
    }

    pub(crate) fn missing_key(&self) -> OnMissingKey {
        // What is not enforced refuses nothing.
        if self.is_shadow && self.missing == OnMissingKey::Reject { OnMissingKey::Skip } else { self.missing }
    }

    pub(crate) fn condition(&self) -> Option<&dyn Condition> {
        self.when.as_deref()
    }

    pub(crate) fn store_error_policy(&self) -> Option<OnStoreError> {
        self.on_store_error
    }

    pub(crate) fn actual_cost(&self) -> Option<&ActualCost> {
        self.actual_cost.as_deref()
    }

    pub(crate) fn own_cost(&self) -> Option<&Cost> {
        self.cost.as_ref()
    }

    /// Refuses a cost that could never pass.
    fn can_hold(&self, cost: u64) -> Result<(), ConfigError> {
        let capacity = self.overage.iter().fold(self.algorithm, |limit, overage| limit.raised(overage.percent));
        let capacity = capacity.capacity();
        if cost > capacity && self.instead.is_empty() && !self.is_overridable {
            return Err(ConfigErrorKind::CostOverCapacity { limit: self.name.to_string(), cost, capacity }.into());
        }
        Ok(())
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("name", &self.name)
            .field("algorithm", &self.algorithm)
            .field("keyed", &self.is_keyed())
            .field("missing", &self.missing)
            .field("cost", &self.cost)
            .field("conditional", &self.when.is_some())
            .field("on_store_error", &self.on_store_error)
            .field("overage", &self.overage.as_ref().map(|overage| overage.percent))
            .field("shadow", &self.is_shadow)
            .field("quota_mode", &self.is_quota)
            .field("penalty", &self.penalty)
            .field("overridable", &self.is_overridable)
            .field("other_sizes", &self.instead.len())
            .field("settled", &self.actual_cost.is_some())
            .finish()
    }
}
