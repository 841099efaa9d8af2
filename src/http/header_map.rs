//! Writes headers to responses. A response that already has as many headers as a `HeaderMap` can hold stays as it is.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Sets a header.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name, value);
}

/// Sets a header, unless the response contains it.
pub(super) fn insert_missing(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if let Ok(entry) = headers.try_entry(name) {
        let _ = entry.or_try_insert(value);
    }
}

/// Adds a line to a header. Returns whether the header had a line before.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    headers.try_append(name, value).unwrap_or_default()
}
