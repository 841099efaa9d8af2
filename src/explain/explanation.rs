//! The explanation of a request.

use std::time::Duration;

use super::applied::ExpectedOutcome;
use super::decider::Decider;
use super::limit::{LimitExplanation, LimitStatus};
use super::list::ListExplanation;
use crate::decision::Verdict;
use crate::hash::KeyHasher;
use crate::key::{KeyError, KeyPart};
use crate::limit_spec;
use crate::list::ListAction;
use crate::resilience::Preview;
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
    #[cfg_attr(feature = "serde", serde(rename = "at_seconds", serialize_with = "super::seconds::instant"))]
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
        #[cfg_attr(feature = "serde", serde(rename = "delay_seconds", serialize_with = "super::seconds::span"))]
        delay: Duration,
    },
    /// A limit denies the request.
    Denied {
        /// The shortest wait after which the request would be allowed, if no other request arrives. `None` if no wait
        /// can help.
        #[cfg_attr(feature = "serde", serde(rename = "retry_after_seconds", serialize_with = "super::seconds::span"))]
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

    /// Creates the explanation of a request from the decision that it would get. `limits` are all limits; outcomes and
    /// sizes are taken from the decision.
    pub(crate) fn decided(preview: Preview, store: Option<String>, mut limits: Vec<LimitExplanation>) -> Self {
        let decided_by = Decider::new(&preview.source, store);
        let Some(decision) = preview.decision else {
            return Self::undecided(Conclusion::StoreFailed, decided_by, limits);
        };
        for outcome in decision.outcomes() {
            let limit = limits.get_mut(outcome.limit());
            if let Some(LimitStatus::Applies(applied)) = limit.map(|limit| &mut limit.status) {
                applied.outcome = Some(ExpectedOutcome::from(outcome));
                if let Some(spec) = limit_spec::find(outcome.limit(), decision.resized()) {
                    applied.capacity = spec.algorithm().capacity();
                }
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
        self.limits.iter_mut().flat_map(LimitExplanation::key_mut)
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
