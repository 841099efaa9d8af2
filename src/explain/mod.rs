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
use crate::recorder::Fallback;
use crate::resilience::{GuardedStore, Preview, PreviewSource};
use crate::select::ListAction;
use crate::store::Purpose;
use crate::store::decision::{Cells, Verdict};
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
    /// Creates the explanation of a request about which no limit decides.
    pub(crate) fn undecided(conclusion: Conclusion, decided_by: Decider, limits: Vec<LimitExplanation>) -> Self {
        Self { conclusion, decided_by, at: None, lists: Vec::new(), limits }
    }

    /// Creates the explanation of a request from the decision about its charges. `limits` are all limits; outcomes and
    /// sizes are taken from the decision. The request is charged if it is allowed and `takes`.
    pub(crate) async fn decided(
        client: &Arc<GuardedStore>,
        cells: Cells,
        mut limits: Vec<LimitExplanation>,
        takes: bool,
    ) -> Self {
        if cells.is_empty() {
            return Self::undecided(Conclusion::from(Verdict::NOW), Decider::Nobody, limits);
        }
        let Preview { source, decision } = if takes {
            Preview { source: PreviewSource::Store, decision: client.decide(cells, Purpose::Take).await.ok() }
        } else {
            client.preview(cells).await
        };
        let decided_by = Decider::new(&source, client.store_name());
        let Some(decision) = decision else {
            return Self::undecided(Conclusion::StoreFailed, decided_by, limits);
        };
        for outcome in decision.outcomes() {
            let limit = limits.get_mut(outcome.limit());
            if let Some(LimitStatus::Applies(applied)) = limit.map(|limit| &mut limit.status) {
                applied.outcome = Some(ExpectedOutcome::from(outcome));
                applied.capacity = outcome.algorithm().capacity();
            }
        }
        let at = Some(decision.at());
        Self { at, ..Self::undecided(Conclusion::from(decision.verdict()), decided_by, limits) }
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
        self.limits.iter_mut().flat_map(|limit| limit.key.iter_mut().flatten())
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

/// The part of a limiter that would decide a request.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Decider {
    /// The store.
    #[non_exhaustive]
    Store {
        /// Its [name](crate::Store::name), such as `memory` or `10.0.0.5:6379`.
        name: Option<String>,
    },
    /// This process, which remembers a denial of the store until its wait is over. See
    /// [`Store::remembered`](crate::Store::remembered).
    RememberedDenial,
    /// The local store of this process, by its share of the limits. See
    /// [`OnStoreError::DecideLocally`](crate::OnStoreError::DecideLocally).
    #[non_exhaustive]
    LocalShare {
        /// The reason why the store does not decide.
        error: String,
    },
    /// The policy that allows requests uncounted. See [`OnStoreError::Allow`](crate::OnStoreError::Allow).
    #[non_exhaustive]
    AllowPolicy {
        /// The reason why the store does not decide.
        error: String,
    },
    /// The policy that rejects requests. See [`OnStoreError::Reject`](crate::OnStoreError::Reject).
    #[non_exhaustive]
    RejectPolicy {
        /// The reason why the store does not decide.
        error: String,
    },
    /// A list, or the policy for missing keys, before any limit is decided.
    Head,
    /// Nothing: no limit applies.
    Nobody,
}

impl Decider {
    fn new(source: &PreviewSource, store: Option<String>) -> Self {
        match source {
            PreviewSource::Store => Self::Store { name: store },
            PreviewSource::Remembered => Self::RememberedDenial,
            PreviewSource::Policies(fallback, error) => {
                let error = error.to_string();
                match fallback {
                    Fallback::DecidedLocally { .. } => Self::LocalShare { error },
                    Fallback::Allowed => Self::AllowPolicy { error },
                    Fallback::Rejected => Self::RejectPolicy { error },
                }
            }
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
