//! Explains what a layer would do with a request, by the same functions that decide about it.

use super::charges::{found_charge, is_applicable};
use super::config::LayerConfig;
use super::layer::RateLimitLayer;
use super::lists::Listed;
use crate::decision::Verdict;
use crate::explain::{AppliedLimit, Conclusion, Decider, Explanation, LimitExplanation, LimitStatus};
use crate::key::{Extracted, KeyBuf, KeyError, KeyPart, PendingKey};
use crate::limit::{Limit, Match, PendingMatches};
use crate::reason::Reason;
use crate::request::RequestHead;
use crate::resilience::{Preview, PreviewSource};
use crate::store::{Charge, OwnedCharge};

impl RateLimitLayer {
    /// Explains what the layer would do with a request now, without charging it. See [`explain`](crate::explain).
    ///
    /// The request has this layer's cost. A [`RouteCost`](crate::RouteCost) inside this layer is not taken into
    /// account. Extractors and conditions read the head as if the request had reached the layer, so it needs what outer
    /// layers and the server would add: the peer's address ([`PeerAddr`](crate::key::PeerAddr)), the matched route
    /// ([`RoutePattern`](crate::key::RoutePattern)), and extensions. To explain real requests, call this from a
    /// middleware in the place of the layer:
    ///
    /// ```
    /// use axum::extract::{Request, State};
    /// use axum::middleware::{self, Next};
    /// use axum::response::{IntoResponse, Response};
    /// use axum::{Router, routing::get};
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead};
    ///
    /// /// Answers requests with the header `x-explain` with an explanation. Let only administrators send it.
    /// async fn explain(State(limits): State<RateLimitLayer>, request: Request, next: Next) -> Response {
    ///     if !request.headers().contains_key("x-explain") {
    ///         return next.run(request).await;
    ///     }
    ///     let explanation = limits.explain(&RequestHead::of(&request)).await;
    ///     explanation.to_string().into_response() // or `Json(explanation)`, with the feature `serde`
    /// }
    ///
    /// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]);
    /// let app: Router = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(limits.clone())
    ///     .layer(middleware::from_fn_with_state(limits, explain));
    /// ```
    pub async fn explain(&self, head: &RequestHead<'_>) -> Explanation {
        explain(&self.config.current(), head, Task::Preview).await
    }

    /// Decides about a request, charges it if it is allowed, and explains the decision.
    pub(crate) async fn decide_and_explain(&self, head: &RequestHead<'_>) -> Explanation {
        explain(&self.config.current(), head, Task::Acquire).await
    }
}

/// Whether an explained request is charged.
#[derive(Clone, Copy)]
enum Task {
    Preview,
    Acquire,
}

async fn explain(config: &LayerConfig, head: &RequestHead<'_>, task: Task) -> Explanation {
    let listed = config.lists.find(head, |_| {});
    let mut explanation = match listed {
        None => explain_limits(config, head, task).await,
        Some(listed) => {
            let conclusion = match listed {
                Listed::Rejected(action) => Conclusion::Listed { action },
                Listed::Exempt => Conclusion::Exempt,
            };
            let not_reached = |limit| LimitExplanation::new(limit, LimitStatus::NotReached);
            let limits = config.client.limits().as_slice().iter().map(not_reached).collect();
            Explanation::undecided(conclusion, Decider::Head, limits)
        }
    };
    explanation.lists = config.lists.explain(head);
    explanation.set_fingerprints(config.client.hasher());
    explanation
}

async fn explain_limits(config: &LayerConfig, head: &RequestHead<'_>, task: Task) -> Explanation {
    let client = &config.client;
    let mut finder = Finder::new(config, head);
    let pending = finder.find();
    finder.resolve(pending).await;
    let Finder { statuses, mut charges, missing_key, .. } = finder;
    let limits = client.limits().as_slice().iter().zip(statuses);
    let limits = limits.map(|(limit, status)| LimitExplanation::new(limit, status)).collect();
    if let Some(error) = missing_key {
        return Explanation::undecided(Conclusion::MissingKey { error }, Decider::Head, limits);
    }
    if charges.is_empty() {
        return Explanation::undecided(Conclusion::from(Verdict::NOW), Decider::Nobody, limits);
    }
    charges.sort_by_key(|charge| charge.spec.index());
    let charges: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::as_charge).collect();
    let preview = match task {
        Task::Preview => client.preview(&charges).await,
        Task::Acquire => Preview { source: PreviewSource::Store, decision: client.acquire(&charges).await.ok() },
    };
    Explanation::decided(preview, client.store_name(), limits)
}

/// Finds out which limits apply to a request, and why the others do not.
struct Finder<'a> {
    config: &'a LayerConfig,
    head: &'a RequestHead<'a>,
    /// The status of each limit.
    statuses: Vec<LimitStatus>,
    charges: Vec<OwnedCharge>,
    /// Why the request is rejected, if it is.
    missing_key: Option<KeyError>,
}

/// A key, or the matches of an index, that have to be awaited.
enum Pending {
    Key { limit: usize, prefix: KeyBuf, rest: PendingKey },
    Search { index: usize, found: PendingMatches },
}

impl<'a> Finder<'a> {
    fn new(config: &'a LayerConfig, head: &'a RequestHead<'a>) -> Self {
        let statuses = vec![LimitStatus::NotReached; config.client.limits().as_slice().len()];
        Self { config, head, statuses, charges: Vec::new(), missing_key: None }
    }

    /// Records the limits whose keys are known at once. Returns the others.
    fn find(&mut self) -> Vec<Pending> {
        let (limits, head) = (self.config.client.limits(), self.head);
        let mut pending = Vec::new();
        for (limit, spec) in limits.unindexed() {
            let index = usize::from(spec.index());
            if !is_applicable(limit, head) {
                self.statuses[index] = LimitStatus::ConditionNotMet;
                continue;
            }
            let mut key = KeyBuf::default();
            match limit.extractor().map_or(Extracted::Done, |extractor| extractor.extract(head, &mut key)) {
                Extracted::Done => self.record(index, Ok(&key)),
                Extracted::Missing(error) => self.record(index, Err(error)),
                Extracted::Pending(rest) => pending.push(Pending::Key { limit: index, prefix: key, rest }),
            }
        }
        for index in 0..limits.indexed().len() {
            let mut matches = Vec::new();
            let mut on_match = |position, matched: Match<&KeyBuf>| matches.push((position, matched.cloned()));
            match limits.find(index, head, &mut on_match) {
                None => self.record_matches(index, &matches),
                Some(found) => pending.push(Pending::Search { index, found }),
            }
        }
        pending
    }

    /// Awaits pending keys, unless the request is rejected without them.
    async fn resolve(&mut self, pending: Vec<Pending>) {
        for pending in pending {
            if self.missing_key.is_some() {
                return;
            }
            match pending {
                Pending::Key { limit, mut prefix, rest } => match rest.await {
                    Ok(rest) => {
                        prefix.append(&rest);
                        self.record(limit, Ok(&prefix));
                    }
                    Err(error) => self.record(limit, Err(error)),
                },
                Pending::Search { index, found } => {
                    let matches = found.await;
                    self.record_matches(index, &matches);
                }
            }
        }
    }

    fn record_matches(&mut self, index: usize, matches: &[(usize, Match<KeyBuf>)]) {
        let indexed = &self.config.client.limits().indexed()[index];
        for limit in indexed.numbers() {
            self.statuses[limit] = LimitStatus::NotMatched;
        }
        for (position, matched) in matches {
            let Some(limit) = indexed.get(*position) else { continue };
            match matched.as_ref() {
                Match::Applies(key) => self.record(limit, key),
                Match::Replaced => self.statuses[limit] = LimitStatus::Replaced,
            }
        }
    }

    /// Records a limit, given the key of the request.
    fn record(&mut self, index: usize, key: Result<&KeyBuf, KeyError>) {
        let limits = self.config.client.limits();
        let (limit, _) = limits.get(index);
        if !is_applicable(limit, self.head) {
            self.statuses[index] = LimitStatus::ConditionNotMet;
            return;
        }
        let parts = self.describe_key(limit, key.ok());
        let charge = found_charge(self.config, index, key, self.head);
        self.statuses[index] = match (charge, key) {
            (Ok(Some(charge)), _) => {
                let derived = limits.spec_for(charge.spec, self.head);
                let charge = Charge { spec: derived.as_ref().unwrap_or(charge.spec), ..charge };
                self.charges.push(OwnedCharge::from(&charge));
                LimitStatus::Applies(AppliedLimit::new(parts, key.err(), &charge))
            }
            (Ok(None), Err(error)) => LimitStatus::Skipped { error, key: parts },
            (Ok(None), Ok(_)) => LimitStatus::ConditionNotMet,
            (Err(Reason::MissingKey(error)), _) | (Err(_), Err(error)) => {
                self.missing_key.get_or_insert(error);
                LimitStatus::Rejects { error, key: parts }
            }
            (Err(_), Ok(_)) => LimitStatus::NotReached,
        };
    }

    fn describe_key(&self, limit: &Limit, key: Option<&KeyBuf>) -> Vec<KeyPart> {
        let mut parts = limit.describe_key(self.head);
        if let ([part], Some(key)) = (&mut parts[..], key) {
            part.found(key);
        }
        parts
    }
}
