//! The names of keys.

use std::fmt::Write;

use super::limit_data::LimitData;
use crate::hash::KeyHash;
use crate::store::LimitSpec;

/// What starts every key's name, unless the store is told otherwise.
pub(super) const PREFIX: &str = "ratelimit";

const HEX: &[u8; 16] = b"0123456789abcdef";

/// `prefix:{hash}:limit:rule`: the limits of one subject share a slot of a Cluster, by the hash in
/// braces, and no two algorithms, periods or calendars a key, as what one remembers means nothing to another.
pub(super) fn name(prefix: &str, spec: &LimitSpec, key: KeyHash) -> String {
    let data = LimitData::of(spec);
    let label = &data.label;
    let mut digits = [0; 32];
    for (two, byte) in digits.as_chunks_mut().0.iter_mut().zip(key.as_u128().to_be_bytes()) {
        *two = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
    }
    let mut name = String::with_capacity(prefix.len() + digits.len() + label.len() + 4);
    name.push_str(prefix);
    name.push_str(":{");
    name.push_str(std::str::from_utf8(&digits).unwrap_or_default());
    name.push_str(label);
    name
}

/// What follows the hash in names of a limit's keys.
pub(super) fn label(spec: &LimitSpec) -> String {
    let mut label = String::from("}:");
    escape(spec.name(), &mut label);
    // Writing to a string can't fail.
    let _ = write!(label, ":{}{}", spec.algorithm().tag(), spec.algorithm().state_period());
    label
}

/// Of what is known of the same key besides: whether it was denied too often.
pub(super) fn of_penalty(mut name: String) -> String {
    name.push_str(":p");
    name
}

/// The key beside that one, which says of what size the limit is for its subject.
pub(super) fn of_override(prefix: &str, spec: &LimitSpec, key: KeyHash) -> String {
    name(prefix, spec, key) + ":override"
}

/// Percent-encodes what could end a component, be a pattern, or break a line.
pub(super) fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::hash::KeyHasher;
    use crate::limit_spec::LimitSettings;

    fn named(limit: &str) -> String {
        let hasher = KeyHasher::with_secret([0; 16]);
        let spec = LimitSpec::new(LimitSettings::new(limit.into(), 0, FixedWindow::per_day(1).into()), &hasher);
        name(PREFIX, &spec, hasher.hash(b"ann@example.org"))
    }

    #[test]
    fn a_key_has_the_hash_in_braces_and_nothing_of_the_input() {
        let name = named("daily");
        assert!(name.starts_with("ratelimit:{") && name.ends_with("}:daily:fw86400s"), "{name}");
        assert_eq!(name.len(), "ratelimit:{}:daily:fw86400s".len() + 32);
        assert!(!name.contains("ann"));
    }

    #[test]
    fn no_two_periods_share_a_key() {
        let hasher = KeyHasher::with_secret([0; 16]);
        let end = |period| {
            let spec =
                LimitSpec::new(LimitSettings::new("limit".into(), 0, FixedWindow::new(1, period).into()), &hasher);
            name(PREFIX, &spec, hasher.hash(b"key")).split_off("ratelimit:{}:limit:".len() + 32)
        };
        assert_eq!(end(Duration::from_secs(60)), "fw60s");
        assert_eq!(end(Duration::from_millis(1_500)), "fw1500000u");
        assert_eq!(end(Duration::from_micros(1)), "fw1u");
    }

    #[test]
    fn odd_limit_names_cannot_pass_for_others() {
        assert!(named("a:b {x}*").ends_with("}:a%3ab%20%7bx%7d%2a:fw86400s"));
        assert_ne!(named("a%3ab"), named("a:b"));
    }
}
