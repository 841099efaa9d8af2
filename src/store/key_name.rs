//! The names of keys in databases: their default prefix, the default secret of their hashes, and how their parts are
//! escaped.

use std::fmt::Write;

/// The default prefix of all names.
pub(super) const DEFAULT_PREFIX: &str = "ratelimit";

/// The default secret. It gives keys a fixed size, but no protection, because it is public.
pub(super) const DEFAULT_SECRET: [u8; 16] = *b"tower-ratelimit\0";

/// Percent-encodes all characters but ASCII letters, digits and `-._/`. The others could separate the parts of a name,
/// be part of a pattern, break a line, or be invalid in the keys of a database.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}
