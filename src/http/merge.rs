//! Merges the headers of layers around each other, so that clients are told of each limit's name once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::headers::{RATE_LIMIT, RATE_LIMIT_POLICY};

/// Leaves one item for each name in `RateLimit` and `RateLimit-Policy`, after a layer has appended a line of its
/// own to both. Of several limits of one name, that with the least remaining stays, in both fields. Lines that
/// are not lists of named items are left as they are, and with them all others.
#[cold]
pub(super) fn merge(headers: &mut HeaderMap) {
    if !repeats_a_name(headers) {
        return;
    }
    let (standings, policies) = (lines(headers, &RATE_LIMIT), lines(headers, &RATE_LIMIT_POLICY));
    let (Some(standings), Some(policies)) = (items(&standings), items(&policies)) else { return };
    // For each name, the remaining tokens and the position of the item to keep, counted among those of the name.
    let mut tightest: HashMap<&[u8], (u64, usize)> = HashMap::new();
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    for item in &standings {
        let count = counts.entry(item.name).or_default();
        let tightest = tightest.entry(item.name).or_insert((u64::MAX, 0));
        *tightest = (*tightest).min((item.remaining(), *count));
        *count += 1;
    }
    for (name, _) in counts.iter().filter(|(_, count)| **count > 1) {
        report(name);
    }
    let kept = |name: &[u8]| tightest.get(name).map(|(_, position)| *position);
    headers.insert(RATE_LIMIT, keep(&standings, kept));
    headers.insert(RATE_LIMIT_POLICY, keep(&policies, kept));
}

/// Drops what is in a list of names for the second time.
#[cold]
pub(super) fn merge_names(field: &HeaderName, headers: &mut HeaderMap) {
    let lines = lines(headers, field);
    if let Some(items) = items(&lines) {
        headers.insert(field, keep(&items, |_| Some(0)));
    }
}

/// Whether a name of the last line is in one of those before it. It allocates nothing: layers whose limits have
/// different names may well be around each other.
fn repeats_a_name(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(RATE_LIMIT).iter();
    let Some(last) = lines.next_back() else { return false };
    let before = lines.count();
    let is_told = |name| {
        let lines = headers.get_all(RATE_LIMIT).iter().take(before);
        lines.flat_map(split).filter_map(Item::of).any(|item| item.name == name)
    };
    split(last).filter_map(Item::of).any(|item| is_told(item.name))
}

fn lines(headers: &HeaderMap, field: &HeaderName) -> Vec<HeaderValue> {
    headers.get_all(field).iter().cloned().collect()
}

fn items(lines: &[HeaderValue]) -> Option<Vec<Item<'_>>> {
    lines.iter().flat_map(split).map(Item::of).collect()
}

/// The items at these positions among those of their names, or the last of a name that has fewer; all of a name
/// without a position.
fn keep(items: &[Item<'_>], position: impl Fn(&[u8]) -> Option<usize>) -> HeaderValue {
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    items.iter().for_each(|item| *counts.entry(item.name).or_default() += 1);
    let mut seen: HashMap<&[u8], usize> = HashMap::new();
    let mut text = Vec::new();
    for item in items {
        let seen = seen.entry(item.name).or_default();
        if position(item.name).is_none_or(|position| *seen == position.min(counts[item.name] - 1)) {
            text.extend_from_slice(if text.is_empty() { b"" } else { b", " });
            text.extend_from_slice(item.text);
        }
        *seen += 1;
    }
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("parts of valid values are valid")
}

/// The members of a structured field's list (RFC 9651), which commas separate but for those in quotes.
fn split(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let members = line.as_bytes().split(move |&byte| {
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = is_quoted && byte == b'\\' && !is_escaped;
        byte == b',' && !is_quoted
    });
    members.map(<[u8]>::trim_ascii)
}

/// A member of a list: a name in quotes, and its parameters.
struct Item<'a> {
    text: &'a [u8],
    /// In its quotes.
    name: &'a [u8],
}

impl<'a> Item<'a> {
    fn of(text: &'a [u8]) -> Option<Self> {
        let mut is_escaped = false;
        let end = text.strip_prefix(b"\"")?.iter().position(|&byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        })?;
        Some(Self { text, name: &text[..end + 2] })
    }

    /// The parameter `r`. A limit that does not tell it is the last to be told.
    fn remaining(&self) -> u64 {
        let mut parameters = self.text[self.name.len()..].split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let remaining = parameters.find_map(|parameter| parameter.strip_prefix(b"r="));
        remaining.and_then(|text| str::from_utf8(text).ok()?.parse().ok()).unwrap_or(u64::MAX)
    }
}

/// Logs once for each name that layers around each other have limits of that name.
fn report(name: &[u8]) {
    if is_news(name) {
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = %String::from_utf8_lossy(name),
            "two layers around each other have a limit of this name, of which clients are told the one with less \
             remaining: give each limit a name of its own. If one layer was applied twice, it charges requests \
             twice: apply it once",
        );
    }
}

/// Whether nothing was reported of the limit called `name`, in its quotes, so far.
pub(super) fn is_news(name: &[u8]) -> bool {
    static REPORTED: Mutex<BTreeSet<Box<[u8]>>> = Mutex::new(BTreeSet::new());
    /// The most names that are remembered, as the service within may make them up.
    const MOST: usize = 64;

    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    reported.len() < MOST && reported.insert(name.into())
}
