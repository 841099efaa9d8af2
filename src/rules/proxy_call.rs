//! Requests that represent the descriptors of a proxy's call.

use std::sync::Arc;

use http::Request;

use crate::key::head::RequestHead;

/// Returns a request for each descriptor that a proxy sends in one call to a rate limit service, for
/// [`RequestLimiter::decide_all`](crate::RequestLimiter::decide_all).
///
/// A limit of a rules file applies to such a request as in [Envoy's service](https://github.com/envoyproxy/ratelimit):
/// the entries, from the first to the last, are the keys on the path of the limit. Limits of the descriptors around it
/// do not apply, and entries in another order select no limit. A limit that another descriptor of the call
/// [replaces](super#which-limits-apply) does not apply. The `key` of a limit is the entries with these names.
///
/// Extractors do not run, but each key of a file still needs one. Keys that only proxies send are registered by
/// [`Extractors::register_descriptor_key`](super::Extractors::register_descriptor_key).
///
/// ```
/// use tower_ratelimit::rules::{self, Extractors};
/// use tower_ratelimit::{Decision, RequestHead, RequestLimiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let extractors = Extractors::new().register_descriptor_key("generic_key");
/// let limits = rules::from_yaml("
/// domain: shop
/// descriptors:
/// - key: generic_key
///   value: search
///   descriptors:
///   - key: remote_address
///     rate_limit: { unit: day, requests_per_unit: 1 }
/// ", &extractors)?;
/// let limiter = RequestLimiter::builder(limits).try_build()?;
///
/// let requests = rules::descriptors([
///     vec![("generic_key", "search"), ("remote_address", "192.0.2.7")],
///     vec![("generic_key", "search")],
/// ]);
/// let heads: Vec<_> = requests.iter().map(RequestHead::of).collect();
/// let decisions = limiter.decide_all(&heads).await.expect("nothing rejects the call");
/// let limits: Vec<usize> = decisions.iter().map(|decision| decision.outcomes().len()).collect();
/// assert_eq!(limits, [1, 0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub fn descriptors<D, K, V>(call: impl IntoIterator<Item = D>) -> Vec<Request<()>>
where
    D: IntoIterator<Item = (K, V)>,
    K: Into<String>,
    V: Into<String>,
{
    let entries = |descriptor: D| descriptor.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    let descriptors: Arc<[_]> = call.into_iter().map(|descriptor| ProxyDescriptor(entries(descriptor))).collect();
    let request = |own| {
        let mut request = Request::new(());
        request.extensions_mut().insert(ProxyCall { descriptors: descriptors.clone(), own });
        request
    };
    (0..descriptors.len()).map(request).collect()
}

/// A descriptor of a proxy: keys with their values.
pub(super) struct ProxyDescriptor(Vec<(String, String)>);

impl ProxyDescriptor {
    /// Returns the entries in order: the key, how many earlier entries have the same key, and the value.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, usize, &str)> {
        self.0.iter().enumerate().map(|(index, (key, value))| {
            let earlier = self.0[..index].iter().filter(|(earlier, _)| earlier == key);
            (key.as_str(), earlier.count(), value.as_str())
        })
    }

    /// Returns the value of a key after `earlier` entries with the same key.
    pub(super) fn value(&self, key: &str, earlier: usize) -> Option<&str> {
        self.0.iter().filter(|(name, _)| name == key).nth(earlier).map(|(_, value)| value.as_str())
    }
}

/// The extension of a request that represents a descriptor of a call.
#[derive(Clone)]
pub(super) struct ProxyCall {
    /// All descriptors of the call.
    pub(super) descriptors: Arc<[ProxyDescriptor]>,
    /// The position of the descriptor that the request represents.
    own: usize,
}

impl ProxyCall {
    /// Returns the call of which a request represents a descriptor.
    pub(super) fn of<'a>(head: &RequestHead<'a>) -> Option<&'a Self> {
        head.extensions.get()
    }

    /// Returns the descriptor that the request represents.
    pub(super) fn own(&self) -> &ProxyDescriptor {
        &self.descriptors[self.own]
    }
}
