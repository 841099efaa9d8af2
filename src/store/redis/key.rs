//! The names of keys.

use super::limit_encoding::LimitEncoding;
use crate::hash::KeyHash;
use crate::store::LimitSpec;

/// Returns the name `prefix:{hash}:limit:rule`.
///
/// The braces put all limits of one subject into one slot of a Cluster. Algorithms, periods and calendars have different
/// names, because their states are incompatible.
pub(super) fn name(prefix: &str, spec: &LimitSpec, key: KeyHash) -> String {
    let encoding = LimitEncoding::of(spec);
    format!("{prefix}:{{{:032x}{}", key.as_u128(), encoding.key_suffix)
}

/// Returns the name of the key that counts the strikes of the key `name`.
pub(super) fn of_penalty(mut name: String) -> String {
    name.push_str(":p");
    name
}

/// Returns the name of the key that holds a subject's override.
pub(super) fn of_override(prefix: &str, spec: &LimitSpec, key: KeyHash) -> String {
    name(prefix, spec, key) + ":override"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::hash::KeyHasher;
    use crate::limit_spec::LimitSettings;
    use crate::store::key_name::DEFAULT_PREFIX;

    fn named(limit: &str) -> String {
        let hasher = KeyHasher::with_secret([0; 16]);
        let spec = LimitSpec::new(LimitSettings::new(limit.into(), 0, FixedWindow::per_day(1).into()), &hasher);
        name(DEFAULT_PREFIX, &spec, hasher.hash(b"ann@example.org"))
    }

    #[test]
    fn a_name_contains_the_hash_in_braces_but_not_the_key() {
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
            name(DEFAULT_PREFIX, &spec, hasher.hash(b"key")).split_off("ratelimit:{}:limit:".len() + 32)
        };
        assert_eq!(end(Duration::from_secs(60)), "fw60s");
        assert_eq!(end(Duration::from_millis(1_500)), "fw1500000u");
        assert_eq!(end(Duration::from_micros(1)), "fw1u");
    }

    #[test]
    fn escaped_limit_names_stay_distinct() {
        assert!(named("a:b {x}*").ends_with("}:a%3ab%20%7bx%7d%2a:fw86400s"));
        assert_ne!(named("a%3ab"), named("a:b"));
    }
}
