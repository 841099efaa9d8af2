//! Merges the lists of nested layers, and of services that report limits of their own.

use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{FieldType, Item, List, ListEntry, Parser};

use crate::http::text::insert;

/// Removes repeated names from lists (RFC 9651), after a layer has appended a line to each. Of several items with the same
/// name in the last list, the one with the least remaining tokens is kept in all lists. If any field is not a list of
/// named items, the lines of the layer replace all others: clients would ignore a field that can't be parsed. Logs a
/// repeated name, unless `is_reported` is set, and then sets that.
#[cold]
pub(super) fn merge(fields: &[HeaderName], headers: &mut HeaderMap, is_reported: &AtomicBool) {
    let list = |field| -> Option<List> {
        let lines: Vec<_> = headers.get_all(field).iter().map(HeaderValue::as_bytes).collect();
        let list: List = Parser::new(&lines.join(&b", "[..])).parse().ok()?;
        list.iter().all(|item| name(item).is_some()).then_some(list)
    };
    let lists: Option<Vec<List>> = fields.iter().map(list).collect();
    let Some(lists @ [.., quotas]) = lists.as_deref() else {
        for field in fields {
            if let Some(own) = headers.get_all(field).iter().next_back().cloned() {
                insert(headers, field.clone(), own);
            }
        }
        return;
    };
    let count = |items: &[ListEntry], of: &ListEntry| items.iter().filter(|item| name(item) == name(of)).count();
    let mut repeated = lists.iter().flat_map(|items| items.iter().filter(|item| count(items, item) > 1));
    let Some(_repeated) = repeated.next() else { return };
    if !is_reported.swap(true, Ordering::Relaxed) {
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = name(_repeated),
            "two nested layers have a limit of this name, and headers list only the one with less remaining: give each \
             limit a name of its own. If one layer was applied twice, it charges requests twice: apply it once",
        );
    }
    for (field, items) in fields.iter().zip(lists) {
        // The item at the position of the one to keep, counted among those of the same name, or the last if there are
        // fewer. The first of items that the last list lacks.
        let kept = items.iter().enumerate().filter(|(index, item)| {
            let quotas = quotas.iter().filter(|quota| name(quota) == name(item)).enumerate();
            let least = quotas.min_by_key(|(_, quota)| remaining(quota)).map_or(0, |(least, _)| least);
            count(&items[..*index], item) == least.min(count(items, item) - 1)
        });
        let kept: List = kept.map(|(_, item)| item.clone()).collect();
        if let Some(Ok(list)) = kept.serialize().map(HeaderValue::try_from) {
            insert(headers, field.clone(), list);
        }
    }
}

/// Returns the name of an item, unless it is not named.
fn name(item: &ListEntry) -> Option<&str> {
    let ListEntry::Item(item) = item else { return None };
    item.bare_item.as_string().map(|name| name.as_str())
}

/// Returns the parameter `r`. Items without it sort last.
fn remaining(item: &ListEntry) -> i64 {
    let ListEntry::Item(Item { params, .. }) = item else { return i64::MAX };
    params.get("r").and_then(|left| left.as_integer()).map_or(i64::MAX, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parameters_are_not_parsed_as_the_remaining_tokens() {
        let [policies, quotas] = ["ratelimit-policy", "ratelimit"].map(HeaderName::from_static);
        let mut headers = HeaderMap::new();
        for line in [r#""a";pk="x;r=0;y";r=9"#, r#""a";r=5"#] {
            headers.append(&quotas, HeaderValue::from_static(line));
            headers.append(&policies, HeaderValue::from_static(r#""a";q=10"#));
        }
        merge(&[policies, quotas.clone()], &mut headers, &AtomicBool::new(false));
        assert_eq!(headers.get_all(quotas).iter().collect::<Vec<_>>(), [r#""a";r=5"#]);
    }
}
