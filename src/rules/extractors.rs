//! The extractors that the keys of descriptors name, and the comparison of their values with those of a file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Cursor, Write};
use std::net::IpAddr;
use std::sync::Arc;

use super::fields::{closest, one_of};
use crate::error::validation;
use crate::key::cidrs::address_of;
use crate::key::head::RequestHead;
use crate::key::prefixes::Prefixes;
use crate::key::{self, Extracted, KeyBuf, KeyExtractor, KeyPart, Spelling};

/// Maps the keys of descriptors to extractors.
///
/// | key | value |
/// |---|---|
/// | `remote_address` | the peer's address by [`key::peer_ip`]; of IPv6 addresses, the first 64 bits |
/// | `method` | the method, with HEAD as GET; descriptors can match any method, but non-standard methods share a bucket, as with [`key::method`] |
/// | `path` | the matched route by [`key::matched_route`] |
/// | `host` | the host by [`key::host`] |
/// | `bearer` | the token of `Authorization: Bearer` by [`key::bearer`] |
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
    /// The domain that files must have, if only one is accepted.
    pub(super) domain: Option<Arc<str>>,
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
    fn new(extractor: impl KeyExtractor) -> Self {
        let text = ValueFormat::Text(extractor.spelling());
        Self { format: extractor.prefixes().map_or(text, ValueFormat::Address), extractor: Arc::new(extractor) }
    }

    /// Returns the value of a request as text, of an address its network. `None` if there is none, or if it is found
    /// asynchronously.
    pub(super) fn text(&self, head: &RequestHead<'_>) -> Option<String> {
        let mut key = KeyBuf::default();
        if let ValueFormat::Address(prefixes) = self.format
            && !self.extractor.is_async()
            && let Ok(Extracted::Done) = self.extractor.extract(head, &mut key)
            && let Some(address) = key.only_part().and_then(address_of)
        {
            return Some(prefixes.text(address));
        }
        let mut parts = self.extractor.describe(head);
        parts.iter_mut().for_each(KeyPart::reveal);
        let values: Option<Vec<_>> = parts.iter().map(KeyPart::value).collect();
        values.filter(|values| !values.is_empty()).map(|values| values.join(","))
    }
}

impl Extractors {
    /// Creates the extractors of the table.
    pub fn new() -> Self {
        Self { named: BTreeMap::new(), domain: None }
            .register_address(REMOTE_ADDRESS, key::peer_ip(), 64)
            .insert("method", Named { format: ValueFormat::Method, ..Named::new(key::any_method()) })
            .insert("path", Named { format: ValueFormat::Path, ..Named::new(key::matched_route()) })
            .register("host", key::host())
            .register("bearer", key::bearer())
    }

    /// Registers an extractor for a key. Replaces the previous extractor of that key.
    ///
    /// Extracted values are compared as text with the values of a file. To be comparable, the extractor must write a
    /// single part of text or bytes, so convert numbers to text. For descriptors without a value, any extractor works.
    /// The values of [`key::host`] and of some [`key::header`]s are compared in [one spelling](key#spellings).
    /// The values of [`key::peer_ip`] and of [`TrustedProxies`](key::TrustedProxies) are compared as addresses, as with
    /// [`register_address`](Self::register_address).
    pub fn register(self, name: impl Into<String>, extractor: impl KeyExtractor) -> Self {
        self.insert(name, Named::new(extractor))
    }

    /// Registers an extractor of IP addresses. Of IPv6 addresses, the first `ipv6_prefix` bits count, or fewer if the
    /// extractor keeps fewer.
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
    /// let extractors = Extractors::new().register_address("remote_address", address, 64);
    /// # let _ = extractors;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `ipv6_prefix` is 0 or over 128.
    #[track_caller]
    pub fn register_address(self, name: impl Into<String>, extractor: impl KeyExtractor, ipv6_prefix: u8) -> Self {
        let prefixes = validation::checked!(Prefixes::DEFAULT.ipv6(ipv6_prefix));
        let prefixes = extractor.prefixes().map_or(prefixes, |own| own.shorter(prefixes));
        self.insert(name, Named { format: ValueFormat::Address(prefixes), ..Named::new(extractor) })
    }

    /// Registers a key of the [descriptors](super::descriptors()) of proxies. A key that has an extractor keeps it. With
    /// any other key, a request without descriptors has no value.
    ///
    /// ```
    /// use tower_ratelimit::rules::Extractors;
    ///
    /// let extractors = Extractors::new().register_descriptor_key("generic_key");
    /// # let _ = extractors;
    /// ```
    pub fn register_descriptor_key(self, name: impl Into<String>) -> Self {
        let name = name.into();
        // Replacing an extractor would lift the limits of requests.
        if self.find(&name).is_ok() { self } else { self.register(name, key::from_fn(|_| None::<String>)) }
    }

    /// Accepts only files of this domain. By default, files can have any domain.
    ///
    /// Call this in programs that serve several domains: otherwise a [watched](super::watch) file could change its
    /// domain, and limit the requests of another.
    ///
    /// ```
    /// use tower_ratelimit::rules::{self, Extractors};
    ///
    /// let error = rules::from_yaml("domain: blog", &Extractors::new().for_domain("shop")).unwrap_err();
    /// assert_eq!(error.to_string(), "1:9: the domain is \"blog\", but \"shop\" is expected: write `domain: shop`");
    /// ```
    pub fn for_domain(self, domain: impl Into<String>) -> Self {
        Self { domain: Some(domain.into().into()), ..self }
    }

    fn insert(mut self, name: impl Into<String>, named: Named) -> Self {
        self.named.insert(name.into(), named);
        self
    }

    /// Returns the extractor of a key, or a message that explains what to write instead.
    pub(super) fn find(&self, name: &str) -> Result<Named, String> {
        if let Some(named) = self.named.get(name) {
            return Ok(named.clone());
        }
        if let Some(header) = name.strip_prefix("header.") {
            validation::header_name(header).map_err(|error| error.to_string())?;
            return Ok(Named::new(key::header(header)));
        }
        if let Some(parameter) = name.strip_prefix("query.") {
            if parameter.trim().is_empty() {
                return Err("`query.` lacks the name of a parameter: write `query.page`, for example".to_owned());
            }
            return Ok(Named::new(key::query(parameter)));
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

/// A value of a file, in the format of its extractor.
#[derive(Clone, Eq, Hash, PartialEq)]
pub(super) enum Matcher {
    Any,
    Exact(Box<[u8]>),
    Pattern(Box<str>),
}

/// The format in which an extractor writes values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ValueFormat {
    Text(Spelling),
    /// A matched route.
    Path,
    /// A method other than `HEAD`, which is extracted as `GET`. Non-standard methods can be compared, but share a
    /// bucket.
    Method,
    /// The 4 or 16 bytes of an address, of which only the bits of its prefix are set.
    Address(Prefixes),
}

impl ValueFormat {
    /// Compiles a value of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if no extractor with this format can write the value.
    pub(super) fn matcher(self, value: Option<&str>) -> Result<Matcher, String> {
        let Some(text) = value else { return Ok(Matcher::Any) };
        if self == Self::Path && text.contains(" /") {
            let message =
                "a path has no method: nest this in a descriptor with `key: method`, and leave the method out";
            return Err(message.to_owned());
        }
        if self == Self::Path && !text.starts_with('*') {
            // A `*` in a pattern is not a parameter.
            validation::path("path", text.split('*').next().unwrap_or(text)).map_err(|error| error.to_string())?;
        }
        let parse = |spelling: Spelling, text: &str| match spelling.parse(text.as_bytes()) {
            Ok(value) => Ok(value.into_owned()),
            Err(error) => Err(error.to_string()),
        };
        if is_pattern(text) {
            let lower = text.to_ascii_lowercase();
            return Ok(Matcher::Pattern(match self {
                Self::Text(Spelling::Host) => {
                    let sample = lower.replace('*', "0");
                    // A part of an IPv6 address is none.
                    if !lower.starts_with('[') && *parse(Spelling::Host, &sample)? != *sample.as_bytes() {
                        return Err(format!("{text:?} matches no host: leave out the port and the last dot"));
                    }
                    lower.into()
                }
                Self::Text(spelling) => String::from_utf8_lossy(&parse(spelling, text)?).into(),
                // As addresses are written.
                Self::Address(_) => lower.into(),
                Self::Path | Self::Method => text.into(),
            }));
        }
        match self {
            Self::Path => {}
            Self::Text(spelling) => return Ok(Matcher::Exact(parse(spelling, text)?.into())),
            Self::Method if text == "HEAD" => return Err("HEAD counts as GET: write `GET`".to_owned()),
            Self::Method => {
                let upper = text.to_uppercase();
                if upper != text && key::is_standard(&upper) {
                    return Err(format!("methods are written in upper case: write `{upper}`"));
                }
            }
            Self::Address(prefixes) => {
                let address = text
                    .parse::<IpAddr>()
                    .map_err(|_| format!("{text:?} is not an IP address: write one, or use a `*`"))?;
                return Ok(Matcher::Exact(match prefixes.network(address) {
                    IpAddr::V4(network) => network.octets().into(),
                    IpAddr::V6(network) => network.octets().into(),
                }));
            }
        }
        Ok(Matcher::Exact(text.as_bytes().into()))
    }

    /// Returns a value of a proxy's descriptor as the extractor would write it.
    pub(super) fn normalize(self, text: &str) -> KeyBuf {
        if let Self::Address(prefixes) = self
            && let Ok(address) = text.parse()
        {
            return KeyBuf::of(&prefixes.network(address));
        }
        let mut value = KeyBuf::default();
        match self {
            Self::Text(spelling) => value.push(&spelling.normalize(text.as_bytes())),
            Self::Method if text == "HEAD" => value.push(b"GET"),
            Self::Path | Self::Method | Self::Address(_) => value.push(text.as_bytes()),
        }
        value
    }

    /// Masks an extracted address to its prefix. Its extractor may keep more bits.
    pub(super) fn mask(self, mut value: KeyBuf) -> KeyBuf {
        if let Self::Address(prefixes) = self
            && let Some(address) = value.only_part().and_then(address_of)
        {
            value = KeyBuf::of(&prefixes.network(address));
        }
        value
    }

    /// Appends the key of an extracted value.
    pub(super) fn append_key(self, value: &KeyBuf, key: &mut KeyBuf) {
        match (self, value.only_part().map(str::from_utf8)) {
            (Self::Method, Some(Ok(method))) if !key::is_standard(method) => key.push(key::OTHER_METHODS.as_bytes()),
            _ => key.append(value),
        }
    }

    /// Returns whether a pattern matches the text of an extracted value.
    pub(super) fn matches(self, pattern: &str, value: &[u8]) -> bool {
        let (Self::Address(_), Some(address)) = (self, address_of(value)) else { return is_match(pattern, value) };
        // Without an allocation. An address has at most 45 characters.
        let mut text = Cursor::new([0; 45]);
        write!(text, "{address}").is_ok() && is_match(pattern, &text.get_ref()[..text.position() as usize])
    }
}

/// Returns whether a value is a pattern, in which each `*` matches any text.
pub(super) fn is_pattern(value: &str) -> bool {
    value.contains('*')
}

/// Returns whether a pattern, in which each `*` matches any number of bytes, matches all of `value`.
fn is_match(pattern: &str, value: &[u8]) -> bool {
    let mut parts = pattern.split('*').map(str::as_bytes);
    let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return false };
    let Some(mut rest) = value.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    // The earliest match of each part leaves the most text for the next.
    parts.filter(|part| !part.is_empty()).all(|part| {
        let found = rest.windows(part.len()).position(|window| window == part);
        rest = found.map_or(&[], |at| &rest[at + part.len()..]);
        found.is_some()
    })
}
