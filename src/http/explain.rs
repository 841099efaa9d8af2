//! Explains what a layer would do with a request, by the same functions that decide about it.

use super::charges::{Finder, Finding, PendingLimits};
use super::config::LayerConfig;
use super::layer::RateLimitLayer;
use crate::decision::Cells;
use crate::explain::{AppliedLimit, Conclusion, Decider, Explanation, LimitExplanation, LimitStatus, ListKind};
use crate::key::KeyError;
use crate::key::heads::RequestHead;
use crate::reason::Reason;

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
        explain(&self.config.current(), head, false).await
    }

    /// Decides about a request, charges it if it is allowed, and explains the decision.
    pub(crate) async fn decide_and_explain(&self, head: &RequestHead<'_>) -> Explanation {
        explain(&self.config.current(), head, true).await
    }
}

/// Explains a request, and charges it if it is allowed and `takes`.
async fn explain(config: &LayerConfig, head: &RequestHead<'_>, takes: bool) -> Explanation {
    let client = &config.client;
    let explain = |limit| LimitExplanation::new(limit, LimitStatus::NotReached, None);
    let mut explainer = Explainer {
        finder: Finder { config, head },
        limits: client.limits().as_slice().iter().map(explain).collect(),
        cells: Cells::new(),
        missing_key: None,
    };
    let conclusion = match config.lists.find(head).0 {
        Some(ListKind::Rejects(action)) => Some(Conclusion::Listed { action }),
        Some(ListKind::Exempts) => Some(Conclusion::Exempt),
        None => {
            explainer.find().await;
            explainer.missing_key.map(|error| Conclusion::MissingKey { error })
        }
    };
    let Explainer { limits, mut cells, .. } = explainer;
    let mut explanation = match conclusion {
        Some(conclusion) => Explanation::undecided(conclusion, Decider::Head, limits),
        None => {
            cells.sort_by_key(|cell| cell.limit());
            Explanation::decided(client, cells, limits, takes).await
        }
    };
    explanation.lists = config.lists.explain(head);
    explanation.set_fingerprints(client.hasher());
    explanation
}

/// Finds out which limits apply to a request, and why the others do not.
struct Explainer<'a> {
    finder: Finder<'a, 'a>,
    limits: Vec<LimitExplanation>,
    cells: Cells,
    /// Why the request is rejected, if it is.
    missing_key: Option<KeyError>,
}

impl Explainer<'_> {
    async fn find(&mut self) {
        let finder = self.finder;
        for index in 0..finder.config.client.limits().indexed().len() {
            self.begin_search(index, LimitStatus::NotMatched);
        }
        // Records limits after the one that rejects the request, too.
        let found = finder.find(|limit, finding| self.record(limit, finding));
        for pending in found.unwrap_or_default() {
            match pending {
                PendingLimits::Search { index, .. } if self.missing_key.is_some() => {
                    self.begin_search(index, LimitStatus::NotReached);
                }
                PendingLimits::Key { .. } if self.missing_key.is_some() => {}
                pending => {
                    let _ = finder.resolve(pending, |limit, finding| self.record(limit, finding)).await;
                }
            }
        }
    }

    /// Sets the status of all limits of an index, before those that match are recorded.
    fn begin_search(&mut self, index: usize, status: LimitStatus) {
        for limit in self.finder.config.client.limits().indexed()[index].numbers() {
            self.limits[limit].status = status.clone();
        }
    }

    fn record(&mut self, index: usize, finding: Finding<'_>) -> Result<(), Reason> {
        let mut looked_up = None;
        let status = match finding {
            Finding::ConditionNotMet => LimitStatus::ConditionNotMet,
            Finding::Replaced => LimitStatus::Replaced,
            Finding::Skipped(error) => LimitStatus::Skipped { error },
            Finding::Rejects(error) => {
                self.missing_key.get_or_insert(error);
                LimitStatus::Rejects { error }
            }
            Finding::Applies { key, cost, missing, found } => {
                looked_up = found;
                let (limits, mut cells) = (self.finder.config.client.limits(), Cells::new());
                limits.add(&mut cells, index, key, cost);
                limits.fit(&mut cells, self.finder.head);
                let applied = AppliedLimit::new(missing, &cells[0]);
                self.cells.extend(cells);
                LimitStatus::Applies(applied)
            }
        };
        let explanation = &mut self.limits[index];
        if !matches!(status, LimitStatus::ConditionNotMet | LimitStatus::Replaced) {
            let mut parts = self.finder.config.client.limits().get(index).describe_key(self.finder.head);
            if let ([part], Some(key)) = (&mut parts[..], looked_up) {
                part.found(key);
            }
            explanation.key = Some(parts);
        }
        explanation.status = status;
        Ok(())
    }
}
