//! Finds the limits that apply to a request, with their keys and costs.

use std::sync::atomic::Ordering;

use super::request_limits::RequestLimits;
use crate::decision::Charges;
use crate::explain::{AppliedLimit, LimitExplanation, LimitStatus};
use crate::key::hash::KeyHash;
use crate::key::head::RequestHead;
use crate::key::{Hashed, KeyBuf, KeyError, PendingKey};
use crate::limit::{Limit, Match, OnMissingKey, Values};

/// Limits of a request that have yet to be found.
pub(crate) enum PendingLimits {
    /// A limit with an asynchronous key.
    Key { limit: usize, key: PendingKey },
    /// The limits that an index finds. `index` is its position among
    /// [`Limits::indexed`](crate::limit::Limits::indexed).
    Search { index: usize, values: Box<Values> },
}

/// Finds the limits that apply to a request.
pub(crate) struct Finder<'a> {
    requests: &'a RequestLimits,
    head: &'a RequestHead<'a>,
    /// The charges of the limits that apply.
    pub(crate) charges: Charges,
    /// Why the request is rejected, if a limit rejects it.
    pub(crate) missing_key: Option<KeyError>,
    /// The explanations of all limits. `None` for a request that is not explained.
    pub(super) explained: Option<&'a mut [LimitExplanation]>,
}

impl<'a> Finder<'a> {
    #[inline]
    pub(crate) fn new(requests: &'a RequestLimits, head: &'a RequestHead<'a>) -> Self {
        Self { requests, head, charges: requests.engine.limits.no_charges(), missing_key: None, explained: None }
    }

    /// Adds the limits that apply. Returns those that have yet to be found. Ends at the first limit that rejects the
    /// request, unless it is explained.
    #[inline]
    pub(crate) fn find(&mut self) -> Vec<PendingLimits> {
        let (requests, head) = (self.requests, self.head);
        let (limits, hasher) = (&requests.engine.limits, requests.engine.hasher());
        let mut pending = Vec::new();
        for (index, limit) in limits.unindexed() {
            if !is_applicable(limit, head) {
                self.note(index, None, || LimitStatus::ConditionNotMet);
                continue;
            }
            let hashed = match limit.key.as_deref() {
                Some(extractor) => extractor.hashed(head, hasher),
                None => Hashed::Known(Ok(KeyBuf::default().hash(hasher))),
            };
            match hashed {
                Hashed::Known(key) => self.add(index, key, None),
                Hashed::Pending(key) => pending.push(PendingLimits::Key { limit: index, key }),
            }
            if self.missing_key.is_some() && self.explained.is_none() {
                return pending;
            }
        }
        for index in 0..limits.indexed.len() {
            let mut values = Values::new();
            if self.search(index, &mut values).is_err() {
                pending.push(PendingLimits::Search { index, values: Box::new(values) });
            }
        }
        pending
    }

    /// Adds the limits of an index that apply, unless a value has to be completed first, whose position is the error.
    fn search(&mut self, index: usize, values: &mut Values) -> Result<(), usize> {
        let (limits, head) = (&self.requests.engine.limits, self.head);
        limits.find(index, head, values, self.explained.is_some(), &mut |position, matched| {
            if let Some(limit) = limits.indexed[index].get(position) {
                self.add_match(limit, matched);
            }
        })
    }

    /// Waits for limits that have yet to be found, and adds those that apply.
    pub(crate) async fn resolve(&mut self, pending: PendingLimits) {
        let engine = &self.requests.engine;
        match pending {
            PendingLimits::Key { limit, key } => {
                let key = key.await;
                let key = key.as_ref().map_err(|error| *error);
                self.add(limit, key.map(|key| key.hash(engine.hasher())), key.ok());
            }
            PendingLimits::Search { index, mut values } => {
                while let Err(pending) = self.search(index, &mut values) {
                    values[pending].complete().await;
                }
            }
        }
    }

    /// Completes the charges of all limits that apply: brings them into the order of the limits, and gives them their
    /// sizes for this request.
    #[inline]
    pub(crate) fn complete(&mut self) {
        self.charges.sort_by_key(|outcome| outcome.limit());
        self.requests.engine.limits.fit(&mut self.charges, self.head);
    }

    /// Adds a limit if it applies, from the result of looking it up in an index.
    fn add_match(&mut self, limit: usize, matched: Match<&KeyBuf>) {
        let engine = &self.requests.engine;
        match matched {
            None => self.note(limit, None, || LimitStatus::Replaced),
            Some(_) if !is_applicable(&engine.limits[limit], self.head) => {
                self.note(limit, None, || LimitStatus::ConditionNotMet);
            }
            Some(key) => self.add(limit, key.map(|key| key.hash(engine.hasher())), key.ok()),
        }
    }

    /// Adds a limit whose condition holds, unless its key is missing and its policy excludes the request. `looked_up`
    /// is the key itself if an index or an asynchronous extractor has found it.
    #[inline]
    fn add(&mut self, index: usize, key: Result<KeyHash, KeyError>, looked_up: Option<&KeyBuf>) {
        let requests = self.requests;
        let limits = &requests.engine.limits;
        let limit = &limits[index];
        let missing_key = key.err();
        let key = match key {
            Ok(key) => key,
            Err(error) => {
                let policy = limit.missing_key_policy(error);
                if self.explained.is_none() {
                    report(requests, limit.name(), policy, error);
                }
                match policy {
                    OnMissingKey::Skip => return self.note(index, looked_up, || LimitStatus::Skipped { error }),
                    OnMissingKey::Reject => {
                        self.missing_key.get_or_insert(error);
                        return self.note(index, looked_up, || LimitStatus::Rejects { error });
                    }
                    OnMissingKey::Share => KeyBuf::default().hash(requests.engine.hasher()),
                }
            }
        };
        let cost = limit.cost.as_ref().unwrap_or(&requests.cost).of(self.head);
        limits.add(&mut self.charges, index, key, cost);
        self.note(index, looked_up, || LimitStatus::Applies(AppliedLimit { missing_key, ..AppliedLimit::default() }));
    }

    /// Notes in an explanation whether a limit applies.
    #[inline]
    pub(super) fn note(&mut self, index: usize, looked_up: Option<&KeyBuf>, status: impl FnOnce() -> LimitStatus) {
        let Some(explained) = &mut self.explained else { return };
        let (explained, status) = (&mut explained[index], status());
        if matches!(status, LimitStatus::Applies(_) | LimitStatus::Skipped { .. } | LimitStatus::Rejects { .. }) {
            explained.key = self.requests.engine.limits[index].describe_key(self.head);
            if let ([part], Some(key)) = (&mut explained.key[..], looked_up) {
                part.found(key);
            }
        }
        explained.status = status;
    }
}

/// Returns whether a limit's condition holds for a request.
fn is_applicable(limit: &Limit, head: &RequestHead<'_>) -> bool {
    limit.condition.as_ref().is_none_or(|condition| condition.may_hold(head))
}

/// Logs misconfiguration that only the operator can correct, once per limiter.
#[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "nothing is logged"))]
fn report(requests: &RequestLimits, limit: &str, policy: OnMissingKey, error: KeyError) {
    match error {
        KeyError::NotProvided if !requests.warned.lacks_address.swap(true, Ordering::Relaxed) => {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                "no request has a key for this limit: the server does not provide it. For peers' addresses with Axum, \
                 serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with Tonic, enable the feature \
                 `tonic`; on a Unix socket, use `trust_unix_peers`; otherwise, insert a `PeerAddr` extension",
            );
        }
        KeyError::NoAddress(cause)
            if policy == OnMissingKey::Reject && !requests.warned.lacks_client.swap(true, Ordering::Relaxed) =>
        {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                %cause,
                "a request has no client address: check the number of proxies, and what they write",
            );
        }
        // Under another policy, requests without the extension are expected.
        KeyError::MissingExtension(extension)
            if policy == OnMissingKey::Reject && !requests.warned.lacks_extension.swap(true, Ordering::Relaxed) =>
        {
            #[cfg(feature = "tracing")]
            tracing::error!(
                limit,
                extension,
                "a request was rejected because it lacks the extension that this limit's key is taken from: if no \
                 request has it, put the layer that sets it outside the rate limit layer (with Axum, call `.layer` \
                 for it later); if only some have it, add another key with `.or(…)` or choose a policy with \
                 `Limit::on_missing_key`",
            );
        }
        _ => {}
    }
}
