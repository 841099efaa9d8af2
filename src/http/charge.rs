//! What limits charge a request, and what comes of asking for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Response;
use smallvec::SmallVec;

use super::headers::DraftHeaders;
use super::shared::Shared;
use crate::algorithm::Availability;
use crate::decision::{Decision, Outcome};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::key::{Hashed, KeyBuf, KeyError, PendingKey};
use crate::limit::{Limit, OnMissingKey, PendingMatches};
use crate::limit_spec;
use crate::list::ListAction;
use crate::request::{OwnHead, RequestHead};
use crate::store::{Charge, LimitSpec, StoreFuture};

/// What came of asking for a decision. `None`: no limit applies.
pub(super) type Asked = Result<Option<Decision>, Failure>;

/// Why there is no decision.
#[derive(Debug)]
pub(super) enum Failure {
    MissingKey(KeyError),
    /// A list.
    Listed(ListAction),
    /// The store, or the policy for when it fails, which was told why.
    Store,
}

/// A decision, at once or later.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub(super) enum Asking {
    /// It may go on, and there is nothing to tell,
    GoOn,
    /// or nothing to do but to tell this.
    Tell(DraftHeaders),
    /// It ends here.
    Refuse(Response<Bytes>),
    Now(Asked),
    Later(Pin<Box<dyn Future<Output = Asked> + Send>>),
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoOn => "GoOn",
            Self::Tell(_) => "Tell",
            Self::Refuse(_) => "Refuse",
            Self::Now(_) => "Now",
            Self::Later(_) => "Later",
        })
    }
}

/// `other_sizes`, which the store does not know of, are noted on the decision.
#[inline(never)]
pub(super) fn decided(answer: StoreFuture<Decision>, other_sizes: &[Arc<LimitSpec>]) -> Asking {
    match answer.into_ready() {
        Ok(decision) => Asking::Now(asked(decision, other_sizes)),
        Err(pending) => decided_later(pending, other_sizes.into()),
    }
}

#[cold]
fn decided_later(pending: StoreFuture<Decision>, other_sizes: Box<[Arc<LimitSpec>]>) -> Asking {
    Asking::Later(Box::pin(async move { asked(pending.await, &other_sizes) }))
}

/// Whether every limit lets the request go on at once. (Where one does not, it may go on all the same.)
#[inline]
pub(super) fn goes_on(decision: &Decision) -> bool {
    let goes_on = |outcome: &Outcome| matches!(outcome.availability(), Availability::Now { delay: 0, .. });
    match decision.outcomes() {
        // Most have one.
        [outcome] => goes_on(outcome),
        outcomes => outcomes.iter().all(goes_on),
    }
}

/// Whether a limit applies to a request.
pub(super) enum Applies<'a> {
    Not,
    Now(Charge<'a>),
    Later(Box<KeyToCome>),
}

#[inline]
pub(super) fn applies<'a>(
    shared: &'a Shared,
    other_sizes: &'a [Arc<LimitSpec>],
    limit: &'a Limit,
    spec: &'a Arc<LimitSpec>,
    head: &RequestHead<'_>,
) -> Result<Applies<'a>, Failure> {
    if limit.condition().is_some_and(|condition| !condition.may_hold(head)) {
        return Ok(Applies::Not);
    }
    let limits = shared.client.limits();
    let spec = limit_spec::find(spec.index().into(), other_sizes).unwrap_or_else(|| limits.current(spec));
    let hasher = shared.client.hasher();
    let of_all = || Hashed::Now(KeyBuf::default().hash(hasher));
    let hashed = limit.extractor().map_or_else(of_all, |extractor| extractor.hashed(head, hasher));
    let cost = limit.own_cost().unwrap_or(&shared.cost).of(head);
    let key = match hashed {
        Hashed::Now(key) => key,
        Hashed::Missing(missing) => {
            match instead(limit.name(), limit.missing_key(), missing, spec.is_enforced(), shared)? {
                Instead::Skip => return Ok(Applies::Not),
                Instead::Share => KeyBuf::default().hash(hasher),
            }
        }
        Hashed::Pending(so_far, rest) => {
            let (spec, policy) = (spec.clone(), limit.missing_key());
            return Ok(Applies::Later(Box::new(KeyToCome { spec, cost, policy, so_far, rest })));
        }
    };
    Ok(Applies::Now(Charge { spec, key, cost }))
}

/// What a limit is to take that was found with others, unless it does not apply after all.
pub(super) fn found<'a>(
    shared: &'a Shared,
    other_sizes: &'a [Arc<LimitSpec>],
    limit: usize,
    key: Result<&KeyBuf, KeyError>,
    head: &RequestHead<'_>,
) -> Result<Option<Charge<'a>>, Failure> {
    let limits = shared.client.limits();
    let (limit, spec) = limits.get(limit);
    if limit.condition().is_some_and(|condition| !condition.may_hold(head)) {
        return Ok(None);
    }
    let spec = limit_spec::find(spec.index().into(), other_sizes).unwrap_or_else(|| limits.current(spec));
    let hasher = shared.client.hasher();
    let key = match key {
        Ok(key) => key.hash(hasher),
        Err(missing) => match instead(limit.name(), limit.missing_key(), missing, spec.is_enforced(), shared)? {
            Instead::Skip => return Ok(None),
            Instead::Share => KeyBuf::default().hash(hasher),
        },
    };
    Ok(Some(Charge { spec, key, cost: limit.own_cost().unwrap_or(&shared.cost).of(head) }))
}

#[inline]
fn asked(decision: Result<Decision, StoreError>, other_sizes: &[Arc<LimitSpec>]) -> Asked {
    match decision {
        Ok(decision) => Ok(Some(decision.overridden(other_sizes))),
        Err(_) => Err(Failure::Store),
    }
}

/// What becomes of a missing key.
enum Instead {
    Skip,
    Share,
}

fn instead(
    limit: &str,
    policy: OnMissingKey,
    missing: KeyError,
    is_enforced: bool,
    shared: &Shared,
) -> Result<Instead, Failure> {
    report(limit, policy, missing, shared);
    match policy {
        _ if missing == KeyError::NotApplicable => Ok(Instead::Skip),
        _ if missing == KeyError::Ambiguous && is_enforced => Err(Failure::MissingKey(missing)),
        // A shadow limit rejects nothing.
        _ if missing == KeyError::Ambiguous => Ok(Instead::Skip),
        OnMissingKey::Skip => Ok(Instead::Skip),
        OnMissingKey::Share => Ok(Instead::Share),
        OnMissingKey::Reject => Err(Failure::MissingKey(missing)),
    }
}

/// Logs once per limiter what only the operator can correct.
fn report(limit: &str, policy: OnMissingKey, missing: KeyError, shared: &Shared) {
    let is_first = |has_reported: &AtomicBool| !has_reported.swap(true, Ordering::Relaxed);
    match missing {
        KeyError::FromServer if is_first(&shared.identity.has_reported) => {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                "no request has a key for this limit: the server does not provide it. For peers' addresses with Axum, \
                 serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with Tonic, enable the feature \
                 `tonic`; otherwise, insert a `PeerAddr` extension",
            );
        }
        // With another policy, requests without the extension are expected.
        KeyError::Extension(extension)
            if policy == OnMissingKey::Reject && is_first(&shared.identity.has_reported_extension) =>
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
            #[cfg(not(feature = "tracing"))]
            let _ = extension;
        }
        _ => {}
    }
    #[cfg(not(feature = "tracing"))]
    let _ = limit;
}

/// A charge whose key has yet to be found out.
pub(super) struct KeyToCome {
    spec: Arc<LimitSpec>,
    cost: u64,
    policy: OnMissingKey,
    so_far: KeyBuf,
    rest: PendingKey,
}

/// Limits that are looked for together, of which it has yet to be found out what a request meets.
pub(super) struct Searched {
    pub(super) index: usize,
    pub(super) rest: PendingMatches,
    pub(super) head: OwnHead,
}

#[cold]
pub(super) fn ask_later(
    shared: &Arc<Shared>,
    known: Vec<(Arc<LimitSpec>, KeyHash, u64)>,
    later: Vec<KeyToCome>,
    searching: Vec<Searched>,
    other_sizes: Box<[Arc<LimitSpec>]>,
) -> Asking {
    Asking::Later(Box::pin(complete(shared.clone(), known, later, searching, other_sizes)))
}

async fn complete(
    shared: Arc<Shared>,
    mut known: Vec<(Arc<LimitSpec>, KeyHash, u64)>,
    later: Vec<KeyToCome>,
    searching: Vec<Searched>,
    other_sizes: Box<[Arc<LimitSpec>]>,
) -> Asked {
    for KeyToCome { spec, cost, policy, mut so_far, rest } in later {
        match rest.await {
            Ok(rest) => so_far.append(&rest),
            Err(missing) => match instead(spec.name(), policy, missing, spec.is_enforced(), &shared)? {
                Instead::Skip => continue,
                Instead::Share => so_far.clear(),
            },
        }
        known.push((spec, so_far.hash(shared.client.hasher()), cost));
    }
    for Searched { index, rest, head } in searching {
        let together = &shared.client.limits().indexed()[index];
        for (place, key) in rest.await {
            let Some(limit) = together.get(place) else { continue };
            let key = key.as_ref().map_err(|missing| *missing);
            if let Some(charge) = found(&shared, &other_sizes, limit, key, &head.head())? {
                known.push((charge.spec.clone(), charge.key, charge.cost));
            }
        }
    }
    // Decisions list limits in the order in which they were given.
    known.sort_by_key(|(spec, ..)| spec.index());
    let charges: SmallVec<[Charge<'_>; 4]> =
        known.iter().map(|(spec, key, cost)| Charge { spec, key: *key, cost: *cost }).collect();
    if charges.is_empty() {
        return Ok(None);
    }
    let answer = shared.client.acquire(&charges);
    drop(charges);
    asked(answer.await, &other_sizes)
}
