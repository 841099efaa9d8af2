//! The charges of a request: the limits that apply to it, with their keys and costs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::config::LayerConfig;
use crate::hash::KeyHash;
use crate::key::{Hashed, KeyBuf, KeyError, PendingKey};
use crate::limit::{Limit, Match, OnMissingKey, PendingMatches};
use crate::limit_spec;
use crate::reason::Reason;
use crate::request::RequestHead;
use crate::store::{Charge, LimitSpec, OwnedCharge};

/// The charges of a request. Requests with more limits are seldom enough for an allocation.
pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 8]>;

/// The charges of a request with keys that have yet to be found.
pub(super) struct PendingCharges {
    found: Vec<OwnedCharge>,
    pending: Vec<PendingCharge>,
}

enum PendingCharge {
    /// The charge of a limit whose key is incomplete.
    Key { spec: Arc<LimitSpec>, cost: u64, prefix: KeyBuf, rest: PendingKey },
    /// The limits that an index finds. `index` is its position among [`Limits::indexed`](crate::limit::Limits::indexed).
    Search { index: usize, found: PendingMatches },
}

/// Adds the charges of a request to `charges`, in the order in which the limits were given, unless some of its keys have
/// yet to be found.
///
/// The vector is filled in place because moving it costs more than finding a charge.
///
/// # Errors
///
/// A limit rejects the request because its key is missing.
pub(super) fn find_charges<'a>(
    config: &'a LayerConfig,
    head: &RequestHead<'_>,
    charges: &mut Charges<'a>,
) -> Result<Option<PendingCharges>, Reason> {
    let limits = config.client.limits();
    let mut finder = ChargeFinder { config, charges, pending: Vec::new() };
    for (limit, spec) in limits.unindexed() {
        finder.add(limit, spec, head)?;
    }
    for index in 0..limits.indexed().len() {
        finder.search(index, head)?;
    }
    let ChargeFinder { charges, pending, .. } = finder;
    if !pending.is_empty() {
        let found = charges.iter().map(OwnedCharge::from).collect();
        return Ok(Some(PendingCharges { found, pending }));
    }
    if limits.may_match_out_of_order() {
        charges.sort_unstable_by_key(|charge| charge.spec.index());
    }
    Ok(None)
}

/// Finds the charges of a request.
struct ChargeFinder<'a, 'c> {
    config: &'a LayerConfig,
    charges: &'c mut Charges<'a>,
    pending: Vec<PendingCharge>,
}

impl<'a> ChargeFinder<'a, '_> {
    /// Adds the charge of a limit, if it applies.
    fn add(&mut self, limit: &Limit, spec: &'a Arc<LimitSpec>, head: &RequestHead<'_>) -> Result<(), Reason> {
        if !is_applicable(limit, head) {
            return Ok(());
        }
        let spec = self.config.client.limits().current(spec);
        let cost = cost(self.config, limit, head);
        let hasher = self.config.client.hasher();
        let hashed = match limit.extractor() {
            Some(extractor) => extractor.hashed(head, hasher),
            None => Hashed::Now(KeyBuf::default().hash(hasher)),
        };
        let key = match hashed {
            Hashed::Now(key) => key,
            Hashed::Missing(error) => match replace_missing_key(self.config, limit, spec, error)? {
                Some(key) => key,
                None => return Ok(()),
            },
            Hashed::Pending(prefix, rest) => {
                self.pending.push(PendingCharge::Key { spec: spec.clone(), cost, prefix, rest });
                return Ok(());
            }
        };
        self.charges.push(Charge { spec, key, cost });
        Ok(())
    }

    /// Adds the charges of the limits that a search finds.
    fn search(&mut self, index: usize, head: &RequestHead<'_>) -> Result<(), Reason> {
        let (config, charges) = (self.config, &mut *self.charges);
        let limits = config.client.limits();
        let indexed = &limits.indexed()[index];
        let mut result = Ok(());
        let pending = limits.find(index, head, &mut |position, matched| {
            if let (Some(limit), Match::Applies(key), Ok(())) = (indexed.get(position), matched, &result) {
                match found_charge(config, limit, key, head) {
                    Ok(charge) => charges.extend(charge),
                    Err(reason) => result = Err(reason),
                }
            }
        });
        self.pending.extend(pending.map(|found| PendingCharge::Search { index, found }));
        result
    }
}

impl PendingCharges {
    /// Waits for the keys. Returns the charges.
    ///
    /// # Errors
    ///
    /// A limit rejects the request because its key is missing.
    pub(super) async fn resolve(
        self,
        config: &LayerConfig,
        head: &RequestHead<'_>,
    ) -> Result<Vec<OwnedCharge>, Reason> {
        let Self { found: mut charges, pending } = self;
        let limits = config.client.limits();
        for pending in pending {
            match pending {
                PendingCharge::Key { spec, cost, mut prefix, rest } => {
                    let key = match rest.await {
                        Ok(rest) => {
                            prefix.append(&rest);
                            Some(prefix.hash(config.client.hasher()))
                        }
                        Err(error) => replace_missing_key(config, limits.get(spec.index().into()).0, &spec, error)?,
                    };
                    charges.extend(key.map(|key| OwnedCharge { spec, key, cost }));
                }
                PendingCharge::Search { index, found } => {
                    for (position, matched) in found.await {
                        let limit = limits.indexed()[index].get(position);
                        let (Some(limit), Match::Applies(key)) = (limit, matched.as_ref()) else { continue };
                        let charge = found_charge(config, limit, key, head)?;
                        charges.extend(charge.as_ref().map(OwnedCharge::from));
                    }
                }
            }
        }
        charges.sort_by_key(|charge| charge.spec.index());
        Ok(charges)
    }
}

/// Returns the charge of a limit that a search has found, if its condition holds.
pub(super) fn found_charge<'a>(
    config: &'a LayerConfig,
    limit: usize,
    key: Result<&KeyBuf, KeyError>,
    head: &RequestHead<'_>,
) -> Result<Option<Charge<'a>>, Reason> {
    let (limit, spec) = config.client.limits().get(limit);
    if !is_applicable(limit, head) {
        return Ok(None);
    }
    let spec = config.client.limits().current(spec);
    let key: Option<KeyHash> = match key {
        Ok(key) => Some(key.hash(config.client.hasher())),
        Err(error) => replace_missing_key(config, limit, spec, error)?,
    };
    Ok(key.map(|key| Charge { spec, key, cost: cost(config, limit, head) }))
}

/// Returns whether a limit's condition holds for a request.
pub(super) fn is_applicable(limit: &Limit, head: &RequestHead<'_>) -> bool {
    limit.condition().is_none_or(|condition| condition.may_hold(head))
}

/// Replaces the limits of charges by the specs that were derived for the request.
pub(super) fn set_specs<'a>(charges: &mut [Charge<'a>], derived: &'a [Arc<LimitSpec>]) {
    for charge in charges {
        charge.spec = limit_spec::find(charge.spec.index().into(), derived).unwrap_or(charge.spec);
    }
}

fn cost(config: &LayerConfig, limit: &Limit, head: &RequestHead<'_>) -> u64 {
    limit.own_cost().unwrap_or(&config.cost).of(head)
}

/// Applies a limit's policy. Returns the key to charge in place of the missing one, or `None` if the limit does not
/// apply.
///
/// # Errors
///
/// Returns the reason if the request is rejected.
pub(super) fn replace_missing_key(
    config: &LayerConfig,
    limit: &Limit,
    spec: &LimitSpec,
    error: KeyError,
) -> Result<Option<KeyHash>, Reason> {
    let policy = limit.missing_key();
    report(config, limit.name(), policy, error);
    match (error, policy) {
        _ if policy.shares(error) => Ok(Some(KeyBuf::default().hash(config.client.hasher()))),
        (KeyError::NotApplicable, _) => Ok(None),
        (KeyError::Ambiguous, _) if spec.is_enforced() => Err(Reason::MissingKey(error)),
        // A limit in shadow mode rejects nothing.
        (KeyError::Ambiguous, _) | (_, OnMissingKey::Skip) => Ok(None),
        _ => Err(Reason::MissingKey(error)),
    }
}

/// Logs misconfiguration that only the operator can correct, once per limiter.
#[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "nothing is logged"))]
fn report(config: &LayerConfig, limit: &str, policy: OnMissingKey, error: KeyError) {
    match error {
        KeyError::NotProvided if config.group.missing_address.is_first() => {
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
            if policy == OnMissingKey::Reject && config.group.missing_extension.is_first() =>
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
