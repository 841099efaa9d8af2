//! What the keys of descriptors name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use super::fields::{closest, one_of};
use super::value::Form;
use crate::key::{self, Extracted, Key, KeyBuf, KeyError, KeyExtractor};
use crate::request::RequestHead;

/// What the keys of descriptors name: extractors.
///
/// | key | takes |
/// |---|---|
/// | `remote_address` | the peer's address: [`key::peer_ip`], of IPv6 the first 64 bits |
/// | `method` | the method, HEAD as GET: values may be any, but methods that are not standard share a bucket, as with [`key::method`] |
/// | `path` | the route that was matched: [`key::matched_route`] |
/// | `header.NAME` | a header: [`key::header`]; a request that [repeats](key#repeated-headers) it is rejected with 400 |
/// | `query.NAME` | the first parameter NAME of the query, decoded; missing where it is empty |
///
/// All else is [registered](Self::register), also in place of one of these: `path` where no router
/// of Axum's is, `remote_address` behind a proxy.
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

/// An extractor, and what it writes.
#[derive(Clone)]
pub(super) struct Named {
    pub(super) extractor: Arc<dyn KeyExtractor>,
    pub(super) form: Form,
}

impl Extractors {
    /// Those of the table.
    pub fn new() -> Self {
        Self { named: BTreeMap::new() }
            .register_address("remote_address", key::peer_ip(), 64)
            .insert("method", AnyMethod, Form::Method)
            .register("path", key::matched_route())
    }

    /// Another extractor, or another one for a known name.
    ///
    /// What it finds is compared as text with the values of a file: it has to write one part, of
    /// text or bytes, or no value will ever fit. Numbers are text there, too: turn them into text.
    /// Without values, any extractor will do.
    pub fn register(self, name: impl Into<String>, extractor: impl KeyExtractor) -> Self {
        self.insert(name, extractor, Form::Text)
    }

    /// An extractor that finds addresses, of IPv6 the first `ipv6_prefix` bits: the values of a file
    /// are addresses then, of which as many bits count, or their text with wildcards.
    ///
    /// # Panics
    ///
    /// When `ipv6_prefix` is 0 or over 128.
    #[track_caller]
    pub fn register_address(self, name: impl Into<String>, extractor: impl KeyExtractor, ipv6_prefix: u8) -> Self {
        assert!((1..=128).contains(&ipv6_prefix), "an IPv6 prefix has 1 to 128 bits, not {ipv6_prefix}");
        self.insert(name, extractor, Form::Address { ipv6_prefix })
    }

    fn insert(mut self, name: impl Into<String>, extractor: impl KeyExtractor, form: Form) -> Self {
        self.named.insert(name.into(), Named { extractor: Arc::new(extractor), form });
        self
    }

    /// The extractor called `name`, or what to write instead.
    pub(super) fn find(&self, name: &str) -> Result<Named, String> {
        if let Some(named) = self.named.get(name) {
            return Ok(named.clone());
        }
        if let Some(header) = name.strip_prefix("header.") {
            if header.parse::<HeaderName>().is_err() {
                return Err(format!("{header:?} is not a header's name: use letters, digits and dashes"));
            }
            return Ok(Named { extractor: Arc::new(key::header(header)), form: Form::Text });
        }
        match name.strip_prefix("query.") {
            Some(name) if name.trim().is_empty() => {
                Err("`query.` lacks the parameter's name: write `query.page`, for example".to_owned())
            }
            Some(name) => Ok(Named { extractor: Arc::new(Query(name.into())), form: Form::Text }),
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> String {
        let mut known: Vec<&str> = self.named.keys().map(String::as_str).collect();
        known.extend(["header.NAME", "query.NAME"]);
        let meant = closest(name, known.iter().copied());
        let meant = meant.map_or(String::new(), |meant| format!("did you mean `{meant}`? Otherwise, "));
        format!("no extractor is called `{name}`: {meant}use {}, or register it", one_of(&known))
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

/// The method, whatever it is, for comparison with the values of a file. [`Form::Method`] makes the key of it.
struct AnyMethod;

impl KeyExtractor for AnyMethod {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        key::get_for_head(head.method).as_str().write(key);
        Extracted::Done
    }
}

/// A parameter of the query. However it is escaped, it is the same key.
struct Query(Box<str>);

impl KeyExtractor for Query {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let query = head.uri.query().unwrap_or_default();
        let mut parameters = form_urlencoded::parse(query.as_bytes());
        match parameters.find(|(name, _)| **name == *self.0) {
            Some((_, value)) if !value.is_empty() => {
                value.write(key);
                Extracted::Done
            }
            _ => Extracted::Missing(KeyError::FromRequest),
        }
    }
}
