//! Escapes the components of key names.

use std::fmt::Write;

/// Appends `text`, percent-encoding all but ASCII letters, digits and `-._/`: what could end a component, be part of a
/// pattern, or break a line.
pub(super) fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            into.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(into, "%{byte:02x}");
        }
    }
}
