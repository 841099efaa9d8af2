//! The extractors that the keys of descriptors name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::fields::{closest, one_of};
use super::value::ValueFormat;
use crate::error::{ConfigError, Fault, or_panic};
use crate::key::{self, Extracted, Key, KeyBuf, KeyExtractor, KeyPart};
use crate::request::RequestHead;
use crate::validation;

/// Maps the keys of descriptors to extractors.
///
/// | key | value |
/// |---|---|
/// | `remote_address` | the peer's address by [`key::peer_ip`]; of IPv6 addresses, the first 64 bits |
/// | `method` | the method, with HEAD as GET; descriptors can match any method, but non-standard methods share a bucket, as with [`key::method`] |
/// | `path` | the matched route by [`key::matched_route`] |
/// | `header.NAME` | the header NAME by [`key::header`] |
/// | `query.NAME` | the decoded query parameter NAME; missing if it is empty |
///
/// If a request repeats a header or a parameter, it is rejected with 400 if an enforced limit depends on it.
///
/// A limit is skipped for requests without a value, except for the client's address: by default, a request without one
/// is rejected, as by a limit in code. See [`register_address`](Self::register_address).
///
/// [Register](Self::register) extractors for other keys, or in place of these: for example `remote_address` behind a
/// proxy, or `path` without an Axum router.
///
/// ```
/// use tower_ratelimit::key;
/// use tower_ratelimit::rules::Extractors;
///
/// #[derive(Clone)]
/// struct Account {
///     plan: &'static str,
/// }
///
/// let extractors = Extractors::new()
///     .register("plan", key::extension(|account: &Account| account.plan))
///     .register("path", key::path());
/// # let _ = extractors;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Extractors {
    named: BTreeMap<String, Named>,
}

/// The key of the client's address, as in Envoy's service.
pub(super) const REMOTE_ADDRESS: &str = "remote_address";

/// An extractor, and the format of its values.
#[derive(Clone)]
pub(super) struct Named {
    pub(super) extractor: Arc<dyn KeyExtractor>,
    pub(super) format: ValueFormat,
}

impl Named {
    fn new(extractor: impl KeyExtractor, format: ValueFormat) -> Self {
        Self { extractor: Arc::new(extractor), format }
    }
}

impl Extractors {
    /// Creates the extractors of the table.
    pub fn new() -> Self {
        Self { named: BTreeMap::new() }
            .register_address(REMOTE_ADDRESS, key::peer_ip(), 64)
            .insert("method", AnyMethod, ValueFormat::Method)
            .register("path", key::matched_route())
    }

    /// Registers an extractor for a key. Replaces the previous extractor of that key.
    ///
    /// Extracted values are compared as text with the values of a file. To be comparable, the extractor must write a
    /// single part of text or bytes, so convert numbers to text. For descriptors without a value, any extractor works.
    /// Use [`register_address`](Self::register_address) for [`key::peer_ip`] and [`key::client_ip`].
    pub fn register(self, name: impl Into<String>, extractor: impl KeyExtractor) -> Self {
        self.insert(name, extractor, ValueFormat::Text)
    }

    /// Registers an extractor of IP addresses that keeps the first `ipv6_prefix` bits of IPv6 addresses.
    ///
    /// The values of a file are then addresses, compared up to that prefix, or patterns for the text of an address.
    ///
    /// A limit for this key rejects requests without an address, unless the file sets its `on_missing_key`: otherwise
    /// clients that connect past a proxy would not be limited. The same holds for any extractor of `remote_address`.
    ///
    /// ```
    /// use tower_ratelimit::key::{self, TrustedProxies};
    /// use tower_ratelimit::rules::Extractors;
    ///
    /// // One proxy is in front of the server, and appends the client's address to the header.
    /// let address = TrustedProxies::hops(1).x_forwarded_for();
    /// let extractors = Extractors::new().register_address("remote_address", key::client_ip(address), 64);
    /// # let _ = extractors;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `ipv6_prefix` is 0 or over 128. [`try_register_address`](Self::try_register_address) returns an error
    /// instead.
    #[track_caller]
    pub fn register_address(self, name: impl Into<String>, extractor: impl KeyExtractor, ipv6_prefix: u8) -> Self {
        or_panic(self.try_register_address(name, extractor, ipv6_prefix))
    }

    /// Fallible version of [`register_address`](Self::register_address).
    ///
    /// ```
    /// use tower_ratelimit::key;
    /// use tower_ratelimit::rules::Extractors;
    ///
    /// let error = Extractors::new().try_register_address("remote_address", key::peer_ip(), 0).unwrap_err();
    /// assert_eq!(error.to_string(), "an IPv6 prefix has 0 bits: use 1 to 128");
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `ipv6_prefix` is 0 or over 128.
    pub fn try_register_address(
        self,
        name: impl Into<String>,
        extractor: impl KeyExtractor,
        ipv6_prefix: u8,
    ) -> Result<Self, ConfigError> {
        if !(1..=128).contains(&ipv6_prefix) {
            return Err(Fault::Ipv6Prefix { bits: ipv6_prefix }.into());
        }
        Ok(self.insert(name, extractor, ValueFormat::Address { ipv6_prefix }))
    }

    fn insert(mut self, name: impl Into<String>, extractor: impl KeyExtractor, format: ValueFormat) -> Self {
        self.named.insert(name.into(), Named::new(extractor, format));
        self
    }

    /// Returns the extractor of a key, or a message that explains what to write instead.
    pub(super) fn find(&self, name: &str) -> Result<Named, String> {
        if let Some(named) = self.named.get(name) {
            return Ok(named.clone());
        }
        if let Some(header) = name.strip_prefix("header.") {
            validation::header_name(header).map_err(|error| error.to_string())?;
            return Ok(Named::new(key::header(header), ValueFormat::Text));
        }
        if let Some(parameter) = name.strip_prefix("query.") {
            if parameter.trim().is_empty() {
                return Err("`query.` lacks the name of a parameter: write `query.page`, for example".to_owned());
            }
            return Ok(Named::new(key::query(parameter), ValueFormat::Text));
        }
        let known: Vec<&str> = self.named.keys().map(String::as_str).chain(["header.NAME", "query.NAME"]).collect();
        let meant = closest(name, &known);
        let meant = meant.map_or(String::new(), |meant| format!("did you mean `{meant}`? Otherwise, "));
        Err(format!("no extractor is called `{name}`: {meant}use {}, or register it", one_of(&known)))
    }
}

impl Default for Extractors {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Extractors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.named.keys()).finish()
    }
}

/// Extracts any method, for comparison with the values of a file. [`ValueFormat::Method`] makes the key of it.
struct AnyMethod;

impl KeyExtractor for AnyMethod {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        key::head_as_get(head.method).as_str().write(key);
        Extracted::Done
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        key::method().describe(head)
    }
}
