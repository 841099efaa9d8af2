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
//!   burst: allowed, 9 of 10 left, cost 1, reset after 100 ms, by peer address 192.0.2.7, fingerprint {fingerprint}
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

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Charges, DecidedBy, Outcome, Purpose, Verdict};
use crate::engine::Engine;
use crate::error::printable;
use crate::key::{KeyError, KeyPart};
use crate::limit::Limit;
pub use crate::select::ListKind;
use crate::select::{Condition, ListAction};
use crate::text::RoundedUp;
use crate::time::Timestamp;

/// An explanation of what would happen to a request now. See the [module](crate::explain).
///
/// `Display` writes it for a terminal: a line for the request, and one for each limit. Durations are rounded up.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Explanation {
    /// The result.
    pub conclusion: Conclusion,
    /// The part of the limiter that would decide. `None` if none does: the request is rejected or exempt by its head, or
    /// rejected because the store fails.
    pub decided_by: Option<DecidedBy>,
    /// The [name](crate::Store::name) of the store, such as `memory` or `10.0.0.5:6379`, if it is asked.
    pub store: Option<String>,
    /// The reason why the store does not decide, if it fails.
    pub store_error: Option<String>,
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
    /// Explains a request: by its head if there is a `conclusion`, and otherwise by a decision about its `charges`, for
    /// this purpose. `limits` are all limits, and say which of them apply.
    pub(crate) async fn new(
        engine: &Arc<Engine>,
        conclusion: Option<Conclusion>,
        charges: Charges,
        limits: Vec<LimitExplanation>,
        purpose: Purpose,
    ) -> Self {
        let mut this = Self {
            conclusion: Conclusion::StoreFailed,
            decided_by: None,
            store: None,
            store_error: None,
            at: None,
            lists: Vec::new(),
            limits,
        };
        this.key_parts().for_each(|part| part.set_fingerprint(engine.hasher()));
        this.describe(&charges, false);
        if let Some(conclusion) = conclusion {
            return Self { conclusion, ..this };
        }
        if charges.is_empty() {
            return Self { conclusion: Verdict::NOW.into(), decided_by: Some(DecidedBy::Unlimited), ..this };
        }
        let (decision, error) = engine.explain(charges, purpose).await;
        (this.store, this.store_error) = (engine.store_name(), error.map(|error| error.to_string()));
        if let Some(decision) = decision {
            this.decided_by = Some(decision.decided_by());
            this.describe(decision.outcomes(), true);
            (this.at, this.conclusion) = (Some(decision.at()), decision.verdict().into());
        }
        this
    }

    /// Sets the costs and sizes of limits that apply, and their outcomes if the charges are decided.
    fn describe(&mut self, charges: &[Outcome], are_decided: bool) {
        for outcome in charges {
            if let Some(LimitStatus::Applies(applied)) =
                self.limits.get_mut(outcome.limit()).map(|limit| &mut limit.status)
            {
                applied.fingerprint = format!("{:032x}", outcome.fingerprint());
                (applied.cost, applied.capacity) = (outcome.cost(), outcome.algorithm().without_lease().capacity());
                applied.outcome = are_decided.then(|| outcome.clone());
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

/// The explanation of one limit: whether and how it applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitExplanation {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The path of its descriptor, if the limit comes from a rules file: keys and values from the outermost descriptor
    /// inwards, as in `path=/login > remote_address`.
    pub rule: Option<Arc<str>>,
    /// The condition, if the limit has one, as in `method is POST`. See [`Condition::describe`].
    pub condition: Option<String>,
    /// The parts of the key, if the limit applies or the key is missing. Empty for a limit with one bucket for all
    /// requests.
    pub key: Vec<KeyPart>,
    /// Whether the limit applies.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub status: LimitStatus,
}

/// Whether a limit applies to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case", tag = "status"))]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "most limits of an explanation apply")]
pub enum LimitStatus {
    /// The limit applies.
    Applies(AppliedLimit),
    /// The limit does not apply: its condition does not hold.
    ConditionNotMet,
    /// The limit does not apply: the request does not match its descriptor in the rules file.
    NotMatched,
    /// The limit does not apply: another limit of the rules file replaces it.
    Replaced,
    /// The limit does not apply: the request has no key for it. See [`OnMissingKey::Skip`](crate::OnMissingKey::Skip).
    #[non_exhaustive]
    Skipped {
        /// The reason why the key is missing.
        error: KeyError,
    },
    /// The request is rejected, because it has no key for this limit. See
    /// [`OnMissingKey::Reject`](crate::OnMissingKey::Reject).
    #[non_exhaustive]
    Rejects {
        /// The reason why the key is missing.
        error: KeyError,
    },
    /// The limit is not evaluated, because the request is rejected earlier.
    NotReached,
}

impl LimitExplanation {
    /// Creates the explanation of a limit that has not been reached.
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            rule: limit.rule_path.clone(),
            condition: limit.condition.as_deref().map(Condition::describe),
            key: Vec::new(),
            status: LimitStatus::NotReached,
        }
    }

    /// Returns how the limit applies, if it does.
    #[must_use]
    pub fn applied(&self) -> Option<&AppliedLimit> {
        match &self.status {
            LimitStatus::Applies(applied) => Some(applied),
            _ => None,
        }
    }

    /// Returns whether the limit denies the request, or rejects it for lack of a key.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.rejects() || self.outcome().is_some_and(Outcome::denies)
    }

    pub(crate) fn rejects(&self) -> bool {
        matches!(self.status, LimitStatus::Rejects { .. })
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.applied()?.outcome.as_ref()
    }
}

/// The cost and the expected outcome of a limit that applies to a request.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AppliedLimit {
    /// The reason for the missing key, if the request is charged to the bucket that requests without a key share. See
    /// [`OnMissingKey::Share`](crate::OnMissingKey::Share).
    pub missing_key: Option<KeyError>,
    /// The fingerprint of the key under this limit, as 32 hexadecimal digits: the same as in the log of `TraceRecorder`
    /// and in [`Stats`](crate::Stats).
    pub fingerprint: String,
    /// The cost of the request, in tokens.
    pub cost: u64,
    /// The capacity that applies to the request and its key, without overage.
    pub capacity: u64,
    /// The outcome. `None` if the limit does not decide, because the store fails.
    pub outcome: Option<Outcome>,
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

/// The most limits of a rules file that are listed although the request does not match them.
const MAX_UNMATCHED: usize = 10;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.conclusion)?;
        write_decider(self, f)?;
        for list in &self.lists {
            let what = match list.kind {
                ListKind::Rejects(_) => "always_reject",
                ListKind::Exempts => "never_limit",
            };
            let verb = if list.matches { "matches" } else { "does not match" };
            write!(f, "\n  {what} {verb}: requires {}", printable(&list.condition))?;
        }
        let mut unmatched = 0;
        for limit in &self.limits {
            unmatched += usize::from(limit.status == LimitStatus::NotMatched);
            if limit.status != LimitStatus::NotMatched || unmatched <= MAX_UNMATCHED {
                write!(f, "\n  {limit}")?;
            }
        }
        if unmatched > MAX_UNMATCHED {
            write!(f, "\n  {} more limits do not match the request", unmatched - MAX_UNMATCHED)?;
        }
        Ok(())
    }
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed { delay } if delay.is_zero() => f.write_str("allowed"),
            Self::Allowed { delay } => write!(f, "allowed after a delay of {}", RoundedUp(*delay)),
            Self::Denied { retry_after: Some(wait) } => write!(f, "denied, retry after {}", RoundedUp(*wait)),
            Self::Denied { retry_after: None } => f.write_str("denied: the cost exceeds the capacity"),
            Self::Exempt => f.write_str("exempt by never_limit"),
            Self::Listed { .. } => f.write_str("rejected by always_reject"),
            Self::MissingKey { error } => write!(f, "rejected: {}", reason(*error)),
            Self::StoreFailed => f.write_str("rejected: the store fails"),
        }
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(rule) = &self.rule {
            write!(f, " ({})", printable(rule))?;
        }
        match &self.status {
            LimitStatus::ConditionNotMet => {
                write!(
                    f,
                    ": does not apply: requires {}",
                    printable(self.condition.as_deref().unwrap_or("its condition"))
                )
            }
            LimitStatus::NotMatched => f.write_str(": does not match the request"),
            LimitStatus::Replaced => f.write_str(": does not apply: replaced by another limit"),
            LimitStatus::NotReached => f.write_str(": not reached"),
            LimitStatus::Skipped { error } => {
                write!(f, ": does not apply: {}{}", reason(*error), KeyParts(&self.key))
            }
            LimitStatus::Rejects { error } => {
                write!(f, ": rejects the request: {}{}", reason(*error), KeyParts(&self.key))
            }
            LimitStatus::Applies(applied) => {
                match &applied.outcome {
                    None => write!(f, ": not decided, cost {}", applied.cost)?,
                    Some(outcome) => {
                        write_verdict(outcome, f)?;
                        write!(f, ", {} of {} left", outcome.remaining(), applied.capacity)?;
                        if outcome.debt() > 0 {
                            write!(f, ", debt {}", outcome.debt())?;
                        }
                        write!(f, ", cost {}", applied.cost)?;
                        if !outcome.reset_after().is_zero() {
                            write!(f, ", reset after {}", RoundedUp(outcome.reset_after()))?;
                        }
                    }
                }
                if let Some(error) = applied.missing_key {
                    write!(f, ", in the bucket of requests without a key: {}", reason(error))?;
                }
                write!(f, "{}, fingerprint {}", KeyParts(&self.key), applied.fingerprint)
            }
        }
    }
}

/// Writes what decides, as the end of the first line.
fn write_decider(explanation: &Explanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Explanation { decided_by, store, store_error, .. } = explanation;
    match (decided_by, store_error) {
        (Some(DecidedBy::RememberedDenial), _) => f.write_str("decided by a remembered denial"),
        (Some(DecidedBy::Memory | DecidedBy::Store | DecidedBy::Lease), _) => {
            f.write_str("decided by the store")?;
            store.as_ref().map_or(Ok(()), |name| write!(f, " ({})", printable(name)))
        }
        (Some(DecidedBy::Local), error) => {
            write!(f, "decided by the local share of the limits: {}", error.as_deref().unwrap_or_default())
        }
        (Some(DecidedBy::Unlimited), Some(error)) => write!(f, "not counted: {error}"),
        (Some(DecidedBy::Unlimited), None) => f.write_str("no limit applies"),
        (None, Some(error)) => write!(f, "not decided: {error}"),
        (None, None) => f.write_str("without a decision of the limits"),
    }
}

/// Writes the verdict of a limit.
fn write_verdict(outcome: &Outcome, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let verdict = outcome.verdict();
    f.write_str(match (verdict.is_allowed(), outcome.is_enforced()) {
        (true, _) => ": allowed",
        (false, true) => ": denied",
        (false, false) => ": would deny, but is not enforced",
    })?;
    if outcome.uses_overage() {
        f.write_str(" within the overage")?;
    }
    if !verdict.delay().is_zero() {
        write!(f, " after a delay of {}", RoundedUp(verdict.delay()))?;
    }
    if let Some(wait) = verdict.retry_after() {
        write!(f, ", retry after {}", RoundedUp(wait))?;
    }
    if outcome.is_locked_out() { f.write_str(", locked out by a penalty") } else { Ok(()) }
}

/// A key as the end of a line.
pub(crate) struct KeyParts<'a>(pub(crate) &'a [KeyPart]);

impl fmt::Display for KeyParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            write!(f, "{}{part}", if index == 0 { ", by " } else { " and " })?;
        }
        Ok(())
    }
}

/// Returns why a key is missing, in words.
fn reason(error: KeyError) -> &'static str {
    match error {
        KeyError::NotSent => "the client did not send the key",
        KeyError::NotProvided => "the server does not provide the key",
        KeyError::NoAddress(_) => "the proxies' header does not name the client",
        KeyError::MissingExtension(_) => "the request lacks the extension of the key",
        KeyError::Ambiguous => "the client sent several keys",
    }
}

/// Serializes a duration or an `Option<Duration>` as a number of seconds.
#[cfg(feature = "serde")]
pub(crate) fn serialize_span<S: serde::Serializer>(
    span: &(impl Into<Option<Duration>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&(*span).into().map(|span| span.as_secs_f64()), serializer)
}

/// Serializes an instant or an `Option<Timestamp>` as the number of seconds since the Unix epoch.
#[cfg(feature = "serde")]
pub(crate) fn serialize_instant<S: serde::Serializer>(
    at: &(impl Into<Option<Timestamp>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&(*at).into().map(|at| at.as_micros() as f64 / 1e6), serializer)
}
