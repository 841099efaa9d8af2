//! Applies the policies for requests without the key of a limit.

use super::layer_config::LayerConfig;
use crate::hash::KeyHash;
use crate::key::{KeyBuf, KeyError};
use crate::limit::{Limit, OnMissingKey};
use crate::reason::Reason;
use crate::store::LimitSpec;

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
