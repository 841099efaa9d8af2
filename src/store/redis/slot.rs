//! The slots of a Cluster: those of keys, and the masters that have them. The `redis` crate computes slots too, but
//! does not return their numbers.

use std::collections::BTreeMap;

use redis::cluster::NodeAddress;
use redis::{FromRedisValue, Value, from_redis_value};

use crate::key::hash::KeyHash;

/// The number of slots.
pub(super) const SLOTS: usize = 16_384;

/// Returns the slot of the key `name`, which is computed from the text in its first braces, or from the whole name if
/// that text is empty.
pub(super) fn of(name: &str) -> u16 {
    let braces = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let tag = braces.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name);
    crc16(tag.as_bytes()) % SLOTS as u16
}

/// Returns the slot of all keys of a subject, whose names have its hash in braces.
pub(super) fn of_key(key: KeyHash) -> u16 {
    of(&format!("{{{:032x}}}", key.as_u128()))
}

/// Returns the positions of the keys of each slot, in the order of slots.
pub(super) fn group(keys: impl IntoIterator<Item = KeyHash>) -> Vec<Vec<usize>> {
    let mut slots = BTreeMap::<_, Vec<_>>::new();
    for (position, key) in keys.into_iter().enumerate() {
        slots.entry(of_key(key)).or_default().push(position);
    }
    slots.into_values().collect()
}

/// The first and the last slot of a range, and its master.
pub(super) type SlotRange = (usize, usize, NodeAddress);

/// Parses the reply of a master on `host` to `CLUSTER SLOTS`.
pub(super) fn parse_ranges(slots: Value, host: &str) -> Option<Vec<SlotRange>> {
    fn parse<T: FromRedisValue>(value: Option<&Value>) -> Option<T> {
        from_redis_value(value?.clone()).ok()
    }
    let mut ranges = Vec::new();
    for range in from_redis_value::<Vec<Vec<Value>>>(slots).ok()? {
        let (first, last, master) = (parse(range.first())?, parse(range.get(1))?, parse::<Vec<Value>>(range.get(2))?);
        if first > last || last >= SLOTS {
            return None;
        }
        // A range without a host is on the host of the master that replied.
        let name = parse::<Option<String>>(master.first())?.filter(|name| !name.is_empty());
        if name.as_deref() != Some("?") {
            let name = name.unwrap_or_else(|| host.to_owned());
            ranges.push((first, last, NodeAddress::new(name, parse(master.get(1))?)));
        }
    }
    Some(ranges)
}

/// Computes CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use redis::cluster_routing::Slot;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::key::hash::KeyHasher;
    use crate::store::escape;
    use crate::store::redis::request::name;
    use crate::store::redis::tests::named;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(of("123456789"), 0x31c3);
        for name in ["", "foo", "{foo}", "a{foo}b", "{}foo", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "a}b{c"] {
            assert_eq!(Slot::new(of(name)), Some(Slot::for_key(name)), "{name:?}");
        }
    }

    #[test]
    fn limits_of_one_key_share_a_slot() {
        let hasher = KeyHasher::with_secret([1; 16]);
        for subject in 0..50_u8 {
            let subject = hasher.hash(&[subject]);
            for limit in ["a", "{", "}", "{}", "{a}", "}{b}", "a:b {x}*", "{00000000000000000000000000000000}"] {
                let cell = named(limit, 0, FixedWindow::per_day(1).into(), &hasher).with_key(subject, 1);
                for prefix in ["ratelimit", "{p}", "{}"] {
                    assert_eq!(of(&name(&escape(prefix), &cell)), of_key(subject), "{prefix:?} {limit:?}");
                }
            }
        }
    }
}
