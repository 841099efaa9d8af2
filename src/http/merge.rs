//! Merges the headers of nested layers, so that each limit's name is listed once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::values::{Text, insert, push_separator, value};

/// Removes repeated names from lists, after a layer has appended a line to each. Of several items with the same name in
/// the first list, the one with the least remaining tokens is kept in all lists. If any line is not a list of named
/// items, nothing is changed.
#[cold]
pub(super) fn merge(fields: &[HeaderName], headers: &mut HeaderMap) {
    let lines = fields.iter().map(|field| headers.get_all(field).iter().cloned().collect());
    let lines: Vec<Vec<HeaderValue>> = lines.collect();
    let items = lines.iter().map(|lines| lines.iter().flat_map(split).map(Item::of).collect());
    let lists: Option<Vec<Vec<Item<'_>>>> = items.collect();
    let Some(lists) = lists else { return };
    let is_repeated = |(index, item): &(usize, &Item<'_>)| lists[0][..*index].iter().any(|other| other.is_like(item));
    let repeated: BTreeSet<&[u8]> =
        lists[0].iter().enumerate().filter(is_repeated).map(|(_, item)| item.name).collect();
    if repeated.is_empty() {
        return;
    }
    repeated.iter().for_each(|name| report(name));
    // The position of the item to keep, counted among those of the same name, or the last if there are fewer. Items that
    // the first list lacks are all kept.
    let position = |item: &Item<'_>| {
        let of_name = lists[0].iter().filter(|other| other.is_like(item)).enumerate();
        of_name.min_by_key(|(_, item)| item.remaining()).map(|(position, _)| position)
    };
    for (field, items) in fields.iter().zip(&lists) {
        let mut text = Text::new();
        for (index, item) in items.iter().enumerate() {
            let [before, later] = [&items[..index], &items[index + 1..]]
                .map(|items| items.iter().filter(|other| other.is_like(item)).count());
            if position(item).is_none_or(|position| before == position.min(before + later)) {
                push_separator(&mut text);
                text.extend_from_slice(item.text);
            }
        }
        insert(headers, field.clone(), value(&text));
    }
}

/// Returns the members of a structured field's list (RFC 9651), which commas separate.
fn split(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    split_unquoted(line.as_bytes(), b',')
}

/// Splits at each `separator` that is not in a quoted string, and trims the parts.
fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(move |&byte| {
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = is_quoted && byte == b'\\' && !is_escaped;
        byte == separator && !is_quoted
    });
    parts.map(<[u8]>::trim_ascii)
}

/// A member of a list: a name in quotes, and its parameters.
struct Item<'a> {
    text: &'a [u8],
    /// The name, including its quotes.
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

    /// Returns whether two items have the same name.
    fn is_like(&self, other: &Self) -> bool {
        self.name == other.name
    }

    /// Returns the parameter `r`. Items without it sort last.
    fn remaining(&self) -> u64 {
        let mut parameters = split_unquoted(&self.text[self.name.len()..], b';');
        let remaining = parameters.find_map(|parameter| parameter.strip_prefix(b"r="));
        remaining.and_then(|text| str::from_utf8(text).ok()?.parse().ok()).unwrap_or(u64::MAX)
    }
}

/// Logs, once for each name, that nested layers have limits of the same name.
fn report(name: &[u8]) {
    if is_first_report(name) {
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = %String::from_utf8_lossy(name),
            "two nested layers have a limit of this name, and headers list only the one with less remaining: give each \
             limit a name of its own. If one layer was applied twice, it charges requests twice: apply it once",
        );
    }
}

/// Returns whether the limit called `name` (including its quotes) was not reported before, and marks it as reported.
pub(super) fn is_first_report(name: &[u8]) -> bool {
    static REPORTED: Mutex<BTreeSet<Box<[u8]>>> = Mutex::new(BTreeSet::new());
    /// The maximum number of names, because the inner service may invent them.
    const MAX_NAMES: usize = 64;

    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    reported.len() < MAX_NAMES && reported.insert(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parameters_are_not_parsed_as_the_remaining_tokens() {
        let [quotas, policies] = ["ratelimit", "ratelimit-policy"].map(HeaderName::from_static);
        let mut headers = HeaderMap::new();
        for line in [r#""a";pk="x;r=0;y";r=9"#, r#""a";r=5"#] {
            headers.append(&quotas, HeaderValue::from_static(line));
            headers.append(&policies, HeaderValue::from_static(r#""a";q=10"#));
        }
        merge(&[quotas.clone(), policies], &mut headers);
        assert_eq!(headers.get_all(quotas).iter().collect::<Vec<_>>(), [r#""a";r=5"#]);
    }
}
