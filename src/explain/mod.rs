//! Explanations of what limits would do with a request, and why, without charging it.
//!
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) explains a request, and
//! [`Limiter::explain`](crate::Limiter::explain) a key. An [`Explanation`] lists all limits: which apply and which do
//! not, under which key, at what cost, and how many tokens each would have left. It agrees with a decision at the same
//! instant. An explanation charges nothing, counts no strike of a penalty, does not affect circuit breakers, and logs
//! nothing about the store.
//!
//! ```
//! use http::{Method, Request};
//! use tower_ratelimit::explain::Conclusion;
//! use tower_ratelimit::key::PeerAddr;
//! use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead, TokenBucket, key, when};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let limits = RateLimitLayer::new([
//!     Limit::new("burst", TokenBucket::per_second(10)).by(key::peer_ip()),
//!     Limit::new("logins", FixedWindow::per_hour(5)).when(when::method(Method::POST)),
//! ]);
//!
//! let mut request = Request::get("/").body(()).unwrap();
//! request.extensions_mut().insert(PeerAddr(([192, 0, 2, 7], 50_000).into()));
//! let explanation = limits.explain(&RequestHead::of(&request)).await;
//! assert!(explanation.is_allowed());
//! let fingerprint = &explanation.limit("burst").unwrap().applied().unwrap().fingerprint;
//! assert_eq!(
//!     explanation.to_string(),
//!     format!(
//!         "\
//! allowed, decided by the store (memory)
//!   burst: allowed, 9 of 10 left, cost 1, reset after 100ms, by peer address 192.0.2.7, fingerprint {fingerprint}
//!   logins: does not apply: requires method is POST"
//!     )
//! );
//! # });
//! ```
//!
//! # Exactness
//!
//! A layer explains a request with the same functions that handle requests, and with a
//! [preview](crate::store::Purpose::Preview) of the store's decision. Stores that answer it like a peek report the
//! tokens that are left *before* the request instead of after it. So does a Redis Cluster for limits whose keys are in
//! different slots.
//!
//! Asynchronous extractors run as they would for a request. An explanation does not foresee that a full memory store
//! may lose strikes of a penalty.
//!
//! # Security
//!
//! An explanation reveals the usage of a key, and how clients are identified. Place a route that serves explanations
//! behind authentication.
//!
//! Values of headers, cookies and query parameters, and those that closures return, may be credentials, so they are
//! shown as fingerprints. [`Explanation::reveal_keys`] shows them. See [`KeyPart`].
//!
//! # Serialization
//!
//! With the feature `serde`, explanations implement `Serialize`. Durations and instants are numbers of seconds, and the
//! names of their fields end in `_seconds`; instants count from the Unix epoch.

mod display;
mod limit;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::display::KeyParts;
pub use self::limit::{AppliedLimit, ExpectedOutcome, LimitExplanation, LimitStatus};
#[cfg(feature = "serde")]
pub(crate) use self::limit::{serialize_instant, serialize_span};
use crate::key::hash::KeyHasher;
use crate::key::{KeyError, KeyPart};
pub use crate::resilience::Decider;
use crate::resilience::GuardedStore;
use crate::select::ListAction;
use crate::store::Purpose;
use crate::store::decision::{Cell, Cells, Verdict};
use crate::time::Timestamp;

/// An explanation of what would happen to a request now. See the [module](crate::explain).
///
/// `Display` writes it for a terminal: a line for the request, and one for each limit.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Explanation {
    /// The result.
    pub conclusion: Conclusion,
    /// The part of the limiter that would decide.
    pub decided_by: Decider,
    /// The instant of the decision, on the clock of the store. `None` if there is no decision.
    #[cfg_attr(feature = "serde", serde(rename = "at_seconds", serialize_with = "serialize_instant"))]
    pub at: Option<Timestamp>,
    /// The lists of the layer: those that reject requests, then those that exempt them.
    pub lists: Vec<ListExplanation>,
    /// All limits, in order.
    pub limits: Vec<LimitExplanation>,
}

/// The result that a request would have.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case", tag = "result"))]
#[non_exhaustive]
pub enum Conclusion {
    /// The request is allowed.
    Allowed {
        /// The delay by a queue. Otherwise zero.
        #[cfg_attr(feature = "serde", serde(rename = "delay_seconds", serialize_with = "serialize_span"))]
        delay: Duration,
    },
    /// A limit denies the request.
    Denied {
        /// The shortest wait after which the request would be allowed, if no other request arrives. `None` if no wait
        /// can help.
        #[cfg_attr(feature = "serde", serde(rename = "retry_after_seconds", serialize_with = "serialize_span"))]
        retry_after: Option<Duration>,
    },
    /// The request is exempt from all limits. See [`never_limit`](crate::Builder::never_limit).
    Exempt,
    /// A list rejects the request. See [`always_reject`](crate::Builder::always_reject).
    Listed {
        /// The action of the list.
        action: ListAction,
    },
    /// The request is rejected, because it has no key for a limit.
    MissingKey {
        /// The reason why the key is missing.
        error: KeyError,
    },
    /// The request is rejected, because the store fails.
    StoreFailed,
}

impl Explanation {
    /// Explains a request: by its head if there is a `conclusion`, and otherwise by a decision about its `cells`, for
    /// this purpose. `limits` are all limits, and say which of them apply.
    pub(crate) async fn new(
        client: &Arc<GuardedStore>,
        conclusion: Option<Conclusion>,
        cells: Cells,
        limits: Vec<LimitExplanation>,
        purpose: Purpose,
    ) -> Self {
        let (is_decided, conclusion) = (conclusion.is_some(), conclusion.unwrap_or(Conclusion::StoreFailed));
        let mut this = Self { conclusion, decided_by: Decider::Head, at: None, lists: Vec::new(), limits };
        this.describe(&cells, false);
        if is_decided {
            return this;
        }
        if cells.is_empty() {
            return Self { conclusion: Verdict::NOW.into(), decided_by: Decider::Nobody, ..this };
        }
        let (decided_by, decision) = client.explain(cells, purpose).await;
        this.decided_by = decided_by;
        if let Some(decision) = decision {
            this.describe(decision.outcomes(), true);
            (this.at, this.conclusion) = (Some(decision.at()), decision.verdict().into());
        }
        this
    }

    /// Sets the costs and sizes of limits that apply, and their outcomes if the cells are decided.
    fn describe(&mut self, cells: &[Cell], are_decided: bool) {
        for cell in cells.iter().filter(|cell| !cell.is_of_penalty()) {
            if let Some(LimitStatus::Applies(applied)) =
                self.limits.get_mut(cell.limit()).map(|limit| &mut limit.status)
            {
                applied.fingerprint = format!("{:032x}", cell.fingerprint());
                (applied.cost, applied.capacity) = (cell.cost(), cell.algorithm().capacity());
                applied.outcome = are_decided.then(|| cell.into());
            }
        }
    }

    /// Returns whether the request would be allowed, possibly after a delay.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.conclusion, Conclusion::Allowed { .. } | Conclusion::Exempt)
    }

    /// Returns the shortest wait after which a denied request would be allowed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.conclusion {
            Conclusion::Denied { retry_after } => retry_after,
            _ => None,
        }
    }

    /// Returns the limit called `name`.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitExplanation> {
        self.limits.iter().find(|limit| *limit.name == *name)
    }

    /// Shows the values of keys that are hidden behind fingerprints. They may be credentials.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-user"))]);
    /// let request = Request::get("/").header("x-user", "ann").body(()).unwrap();
    ///
    /// let explanation = limits.explain(&RequestHead::of(&request)).await;
    /// assert!(!explanation.to_string().contains("ann"));
    /// assert!(explanation.reveal_keys().to_string().contains("by header x-user ann"));
    /// # });
    /// ```
    #[must_use]
    pub fn reveal_keys(mut self) -> Self {
        self.key_parts().for_each(KeyPart::reveal);
        self
    }

    /// Sets the fingerprints of hidden values.
    pub(crate) fn set_fingerprints(&mut self, hasher: &KeyHasher) {
        self.key_parts().for_each(|part| part.set_fingerprint(hasher));
    }

    fn key_parts(&mut self) -> impl Iterator<Item = &mut KeyPart> {
        self.limits.iter_mut().flat_map(|limit| &mut limit.key)
    }
}

impl From<Verdict> for Conclusion {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow { delay } => Self::Allowed { delay },
            Verdict::Deny { retry_after } => Self::Denied { retry_after },
        }
    }
}

/// A list of requests, and whether it contains this one.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ListExplanation {
    /// The effect of the list.
    pub kind: ListKind,
    /// The condition in words, as in `address is in a list of 3 networks`.
    pub condition: String,
    /// Whether the request is on the list.
    pub matches: bool,
}

/// The effect of a list on the requests that match it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListKind {
    /// Rejects the requests. See [`always_reject`](crate::Builder::always_reject).
    Rejects(ListAction),
    /// Exempts the requests from all limits. See [`never_limit`](crate::Builder::never_limit).
    Exempts,
}
