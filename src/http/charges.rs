//! The limits that apply to a request, with their keys and costs, for its decision, and an explanation of both.

use std::sync::atomic::Ordering;

use super::config::LayerConfig;
use crate::explain::{AppliedLimit, Conclusion, Decider, Explanation, LimitExplanation, LimitStatus, ListKind};
use crate::key::hash::KeyHash;
use crate::key::heads::RequestHead;
use crate::key::{Hashed, KeyBuf, KeyError, PendingKey};
use crate::limit::{Limit, Limits, Match, OnMissingKey, PendingMatches};
use crate::store::decision::Cells;

/// Whether a limit applies to a request.
pub(super) enum Finding<'k> {
    Applies {
        key: KeyHash,
        cost: u64,
        /// Why the key is missing, if requests without a key share a bucket.
        missing: Option<KeyError>,
        /// The key, if an index or an asynchronous extractor has found it.
        found: Option<&'k KeyBuf>,
    },
    ConditionNotMet,
    /// Another limit of the index replaces it.
    Replaced,
    /// It does not apply to requests without a key.
    Skipped(KeyError),
    /// It rejects requests without a key.
    Rejects(KeyError),
}

/// Limits of a request that have yet to be found.
pub(super) enum PendingLimits {
    /// A limit whose key is incomplete.
    Key { limit: usize, prefix: KeyBuf, rest: PendingKey },
    /// The limits that an index finds. `index` is its position among
    /// [`Limits::indexed`](crate::limit::Limits::indexed).
    Search { index: usize, found: PendingMatches },
}

impl Finding<'_> {
    /// Adds the limit's cells to others, if it applies. Sets `missing_key` if it is the first that rejects the request.
    #[inline]
    pub(super) fn add_to(self, limits: &Limits, limit: usize, cells: &mut Cells, missing_key: &mut Option<KeyError>) {
        match self {
            Self::Applies { key, cost, .. } => limits.add(cells, limit, key, cost),
            Self::Rejects(error) => _ = missing_key.get_or_insert(error),
            Self::ConditionNotMet | Self::Replaced | Self::Skipped(_) => {}
        }
    }
}

/// Finds the limits that apply to a request.
#[derive(Clone, Copy)]
pub(super) struct Finder<'a, 'h> {
    pub(super) config: &'a LayerConfig,
    pub(super) head: &'h RequestHead<'h>,
}

impl Finder<'_, '_> {
    /// Calls `visit` with the index of each limit and with what is known about it, except for limits of an index that
    /// do not match the request. Returns the limits that have yet to be found.
    #[inline]
    pub(super) fn find(self, mut visit: impl FnMut(usize, Finding<'_>)) -> Vec<PendingLimits> {
        let Self { config, head } = self;
        let (limits, hasher) = (config.client.limits(), config.client.hasher());
        let mut pending = Vec::new();
        for (index, limit) in limits.unindexed() {
            if !is_applicable(limit, head) {
                visit(index, Finding::ConditionNotMet);
                continue;
            }
            let hashed = match limit.key.as_deref() {
                Some(extractor) => extractor.hashed(head, hasher),
                None => Hashed::Known(Ok(KeyBuf::default().hash(hasher))),
            };
            let key = match hashed {
                Hashed::Known(key) => key,
                Hashed::Pending(prefix, rest) => {
                    pending.push(PendingLimits::Key { limit: index, prefix, rest });
                    continue;
                }
            };
            visit(index, self.with_key(index, key, None));
        }
        for (index, indexed) in limits.indexed.iter().enumerate() {
            let found = limits.find(index, head, &mut |position, matched| {
                if let Some(limit) = indexed.get(position) {
                    visit(limit, self.of_match(limit, matched));
                }
            });
            pending.extend(found.map(|found| PendingLimits::Search { index, found }));
        }
        pending
    }

    /// Waits for limits that have yet to be found. Calls `visit` as [`find`](Self::find) does.
    pub(super) async fn resolve(self, pending: PendingLimits, mut visit: impl FnMut(usize, Finding<'_>)) {
        let client = &self.config.client;
        match pending {
            PendingLimits::Key { limit, mut prefix, rest } => {
                let key = rest.await.map(|rest| {
                    prefix.append(&rest);
                    prefix.hash(client.hasher())
                });
                visit(limit, self.with_key(limit, key, Some(&prefix)));
            }
            PendingLimits::Search { index, found } => {
                for (position, matched) in found.await {
                    if let Some(limit) = client.limits().indexed[index].get(position) {
                        let matched = matched.as_ref().map(|key| key.as_ref().map_err(|error| *error));
                        visit(limit, self.of_match(limit, matched));
                    }
                }
            }
        }
    }

    /// Finds out whether a limit applies, from the result of looking it up in an index.
    fn of_match<'k>(self, limit: usize, matched: Match<&'k KeyBuf>) -> Finding<'k> {
        let client = &self.config.client;
        match matched {
            None => Finding::Replaced,
            Some(_) if !is_applicable(client.limits().get(limit), self.head) => Finding::ConditionNotMet,
            Some(key) => self.with_key(limit, key.map(|key| key.hash(client.hasher())), key.ok()),
        }
    }

    /// Finds out whether a limit with this key applies. The limit's condition holds. `key` is the hash of the request's
    /// key, and `found` is the key itself if it was looked up.
    #[inline]
    fn with_key<'k>(self, index: usize, key: Result<KeyHash, KeyError>, found: Option<&'k KeyBuf>) -> Finding<'k> {
        let config = self.config;
        let limits = config.client.limits();
        let limit = limits.get(index);
        let missing = key.err();
        let key = match key {
            Ok(key) => key,
            Err(error) => {
                let policy = limit.missing_key();
                report(config, limit.name(), policy, error);
                match (error, policy) {
                    _ if policy.shares(error) => KeyBuf::default().hash(config.client.hasher()),
                    (KeyError::NotApplicable, _) => return Finding::Skipped(error),
                    (KeyError::Ambiguous, _) if !limit.is_shadow() => return Finding::Rejects(error),
                    // A limit in shadow mode rejects nothing.
                    (KeyError::Ambiguous, _) | (_, OnMissingKey::Skip) => return Finding::Skipped(error),
                    _ => return Finding::Rejects(error),
                }
            }
        };
        let cost = limit.cost.as_ref().unwrap_or(&config.cost).of(self.head);
        Finding::Applies { key, cost, missing, found }
    }
}

/// Returns whether a limit's condition holds for a request.
fn is_applicable(limit: &Limit, head: &RequestHead<'_>) -> bool {
    limit.condition.as_ref().is_none_or(|condition| condition.may_hold(head))
}

/// Logs misconfiguration that only the operator can correct, once per limiter.
#[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "nothing is logged"))]
fn report(config: &LayerConfig, limit: &str, policy: OnMissingKey, error: KeyError) {
    match error {
        KeyError::NotProvided if !config.group.lacks_address.swap(true, Ordering::Relaxed) => {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                "no request has a key for this limit: the server does not provide it. For peers' addresses with Axum, \
                 serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with Tonic, enable the feature \
                 `tonic`; otherwise, insert a `PeerAddr` extension",
            );
        }
        // Under another policy, requests without the extension are expected.
        KeyError::MissingExtension(extension)
            if policy == OnMissingKey::Reject && !config.group.lacks_extension.swap(true, Ordering::Relaxed) =>
        {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                extension,
                "a request was rejected because it lacks the extension that this limit's key is taken from. If no \
                 request has it, put the layer that sets it outside the rate limit layer (with Axum, call `.layer` \
                 for it later). If only some have it, add another key with `.or(…)` or choose a policy with \
                 `Limit::on_missing_key`",
            );
        }
        _ => {}
    }
}

/// Explains a request, and charges it if it is allowed and `takes`.
pub(super) async fn explain(config: &LayerConfig, head: &RequestHead<'_>, takes: bool) -> Explanation {
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
        for index in 0..finder.config.client.limits().indexed.len() {
            self.begin_search(index, LimitStatus::NotMatched);
        }
        for pending in finder.find(|limit, finding| self.record(limit, finding)) {
            match pending {
                PendingLimits::Search { index, .. } if self.missing_key.is_some() => {
                    self.begin_search(index, LimitStatus::NotReached);
                }
                PendingLimits::Key { .. } if self.missing_key.is_some() => {}
                pending => finder.resolve(pending, |limit, finding| self.record(limit, finding)).await,
            }
        }
    }

    /// Sets the status of all limits of an index, before those that match are recorded.
    fn begin_search(&mut self, index: usize, status: LimitStatus) {
        for limit in self.finder.config.client.limits().indexed[index].numbers() {
            self.limits[limit].status = status.clone();
        }
    }

    fn record(&mut self, index: usize, finding: Finding<'_>) {
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
    }
}
