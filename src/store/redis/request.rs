//! Encodes requests for the script, in the format that `lua/prelude.lua` describes, and computes the slots of their keys
//! in a Cluster.

use std::collections::BTreeMap;

use deadpool_redis::redis::Cmd;
use smallvec::SmallVec;

use crate::algorithm::{Algorithm, CompactState, Kind, Rounding};
use crate::key::hash::KeyHash;
use crate::store::Override;
use crate::store::decision::{Cell, Veto};
use crate::time::ceil_micros;

/// The operation of the script on the keys of a request. Capital letters stand for those that decide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire = b'A' as isize,
    Peek = b'P' as isize,
    /// Charges nothing, like a peek, but counts denials as strikes.
    PeekWithStrikes = b'S' as isize,
    Refund = b'r' as isize,
    GetOverride = b'g' as isize,
    SetOverride = b'o' as isize,
    /// Deletes the keys.
    Reset = b'x' as isize,
}

/// A request, encoded for the script.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) keys: SmallVec<[String; 2]>,
    /// All but the keys. That of one limit fits without an allocation.
    body: SmallVec<[u8; 48]>,
}

/// The largest cost that a script is given: no limit holds that much, so that a refund never needs more, whatever the
/// limit's capacity was at the time of the charge.
const MAX_COST: u64 = 1 << 33;

/// Stands for a request that differs from the previous one only in its keys.
const SAME: u8 = b'=';

/// The length of a request's header: its task, the numbers of its limits and keys, and its length.
const HEADER: usize = 5;

impl Request {
    pub(super) fn new(task: Task, cells: usize) -> Self {
        // A limiter has at most 64 limits, each with a penalty.
        Self { keys: SmallVec::new(), body: SmallVec::from_slice(&[task as u8, cells as u8, 0, HEADER as u8, 0]) }
    }

    /// Encodes the decision on cells at about `now` (in µs).
    pub(super) fn decide(prefix: &str, task: Task, now: u64, cells: &[Cell]) -> Self {
        let mut request = Self::new(task, cells.len());
        for cell in cells {
            request.key(name(prefix, cell));
            let veto = match cell.veto() {
                Veto::Enforced => b'e',
                Veto::Shadow => b's',
                Veto::Quota => b'q',
            };
            request.extend(&[tag(cell.algorithm()), veto, cell.is_overridable().into()]);
            request.arguments(cell, now);
            if cell.is_overridable() {
                request.key(name_of_override(prefix, cell));
                request.numbers([cell.overage_percent.into()]);
            }
        }
        request
    }

    /// Encodes the refunds of cells.
    pub(super) fn refund(prefix: &str, cells: &[&Cell]) -> Self {
        let mut request = Self::new(Task::Refund, cells.len());
        for cell in cells {
            request.key(name(prefix, cell));
            request.extend(&[tag(cell.algorithm())]);
            request.extend(&encode_state(&cell.mark));
            // Refunds do not depend on the instant.
            request.arguments(cell, 0);
        }
        request
    }

    /// Encodes the removal of the states of cells.
    pub(super) fn reset(prefix: &str, cells: &[&Cell]) -> Self {
        let mut request = Self::new(Task::Reset, cells.len());
        cells.iter().for_each(|cell| request.key(name(prefix, cell)));
        request
    }

    /// Encodes setting the override of a key.
    pub(super) fn set_override(prefix: &str, cell: &Cell, size: Override) -> Self {
        let mut request = Self::of_override(Task::SetOverride, prefix, cell);
        let span = size.expires_after.map_or(-1.0, |span| ceil_micros(span) as f64);
        request.extend(&span.to_le_bytes());
        request.extend(size.algorithm.size().map(u32::to_le_bytes).as_flattened());
        request
    }

    /// Encodes another operation on the override of a key.
    pub(super) fn of_override(task: Task, prefix: &str, cell: &Cell) -> Self {
        let mut request = Self::new(task, 1);
        request.key(name_of_override(prefix, cell));
        request
    }

    /// Appends a key.
    pub(super) fn key(&mut self, key: String) {
        self.keys.push(key);
        self.body[2] = self.keys.len() as u8;
    }

    /// Returns whether it refunds charges of earlier requests.
    pub(super) fn is_refund(&self) -> bool {
        self.body[0] == Task::Refund as u8
    }

    /// Returns the length of its keys and its body.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.keys.iter().map(String::len).sum::<usize>()
    }

    /// Returns the Cluster slot of its keys, which must be one.
    pub(super) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot_of(key))
    }

    /// Appends the arguments of a cell for a charge at about `now` (in µs).
    fn arguments(&mut self, cell: &Cell, now: u64) {
        let rule = cell.algorithm();
        let hard = rule.hard_capacity();
        // Or a smaller cost that exceeds the capacity as well.
        let cost = cell.cost().min(MAX_COST.max(hard + 1));
        // Zero strikes stand for denials that do not count.
        let amount = if rule.is_penalty() && !cell.makes_strikes { 0 } else { rule.amount };
        self.numbers([cost, rule.capacity, hard, amount.into(), rule.span]);
        match rule.kind {
            Kind::Window(Some(calendar)) => {
                // The edges, in seconds, of the window that contains `now`, the one before and the two after.
                let (start, end) = calendar.window((now / 1_000_000) as i64);
                let (before, _) = calendar.window(start - 1);
                let (_, next) = calendar.window(end);
                let (_, next_but_one) = calendar.window(next);
                for edge in [before, start, end, next, next_but_one] {
                    self.extend(&(edge as f64).to_le_bytes());
                }
            }
            Kind::Log(buckets) => self.numbers([buckets.map_or(1, |buckets| rule.span / u64::from(buckets))]),
            Kind::Penalty { longest, memory } => self.numbers([longest, memory]),
            _ => {}
        }
    }

    /// Appends numbers, which are exact under 2^53.
    fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        self.extend(numbers.map(|number| (number as f64).to_le_bytes()).as_flattened());
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
        // 64 limits take less than 16 KB.
        let length = (self.body.len() as u16).to_le_bytes();
        self.body[HEADER - 2..HEADER].copy_from_slice(&length);
    }
}

/// Returns the letter by which the script knows an algorithm.
fn tag(rule: &Algorithm) -> u8 {
    match rule.kind {
        Kind::Bucket(_) if rule.is_queue() => b'q',
        Kind::Bucket(_) => b'b',
        Kind::IntervalBucket => b'i',
        Kind::Window(None) => b'w',
        Kind::Window(Some(_)) => b'k',
        Kind::Counter(Rounding::Down) => b'c',
        Kind::Counter(Rounding::Up) => b'u',
        Kind::Log(_) => b'l',
        Kind::Penalty { .. } => b'p',
    }
}

/// Returns the name `prefix:{hash}:limit:rule` of the key that holds a cell's state, or `prefix:{hash}:limit:rule:p`
/// for a penalty.
///
/// The braces put all limits of one subject into one slot of a Cluster. Algorithms, periods and calendars have
/// different names, because their states are incompatible.
pub(super) fn name(prefix: &str, cell: &Cell) -> String {
    let name = cell.readable_name().expect("a limiter names its cells for a store with readable keys");
    format!("{prefix}:{{{:032x}}}:{name}", cell.key().as_u128())
}

/// Returns the name of the key that holds a subject's override.
pub(super) fn name_of_override(prefix: &str, cell: &Cell) -> String {
    name(prefix, cell) + ":override"
}

/// Encodes a clock that replaces Redis' own in tests: the instant, and for how many ms keys outlive their state, as
/// Redis' own clock goes on while the test's stands still.
pub(super) fn encode_clock(micros: u64) -> [u8; 16] {
    const KEPT: f64 = 600_000.0;
    let [now, kept] = [micros as f64, KEPT].map(|number| u128::from(number.to_bits()));
    (kept << 64 | now).to_le_bytes()
}

/// Returns the command that has the script of this `hash` perform `requests`, one after the other, at one instant.
pub(super) fn evalsha(hash: &str, clock: &[u8], requests: &[Request]) -> Cmd {
    let keys = || requests.iter().flat_map(|request| &request.keys);
    let (number, length) = keys().fold((0, 0), |(number, length), key| (number + 1, length + key.len()));
    let bodies = encode(requests);
    // The command, the hash, the number of keys and the clock take less than 96 bytes.
    let mut command = Cmd::with_capacity(5 + number, 96 + length + bodies.len());
    command.arg("EVALSHA").arg(hash).arg(number);
    for key in keys() {
        command.arg(key);
    }
    command.arg(clock).arg(bodies);
    command
}

/// Encodes all of `requests` but their keys.
pub(super) fn encode(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(requests.iter().map(|request| request.body.len()).sum());
    let mut last: &[u8] = &[];
    for request in requests {
        if *request.body == *last {
            bytes.push(SAME);
        } else {
            bytes.extend_from_slice(&request.body);
        }
        last = &request.body;
    }
    bytes
}

/// The length of a state: 7 bytes for each instant, 4 for each half of the detail.
pub(super) const STATE: usize = 22;
/// The length of an instant.
pub(super) const INSTANT: usize = 7;

pub(super) fn encode_state(state: &CompactState) -> [u8; STATE] {
    let mut bytes = [0; STATE];
    bytes[..INSTANT].copy_from_slice(&state.expires_at.to_le_bytes()[..INSTANT]);
    bytes[INSTANT..2 * INSTANT].copy_from_slice(&state.at.to_le_bytes()[..INSTANT]);
    bytes[2 * INSTANT..].copy_from_slice(&state.detail.to_le_bytes());
    bytes
}

/// The number of slots of a Cluster.
pub(super) const SLOTS: usize = 16_384;

/// Returns the Cluster slot of the key `name`, which is computed from the text in its first braces, or from the whole
/// name if that text is empty.
pub(super) fn slot_of(name: &str) -> u16 {
    let braces = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let tag = braces.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name);
    crc16(tag.as_bytes()) % SLOTS as u16
}

/// Returns the slot of a subject's keys. Their names have the hash of the subject in braces.
pub(super) fn slot_of_key(key: KeyHash) -> u16 {
    slot_of(&format!("{{{:032x}}}", key.as_u128()))
}

/// Groups items by their slots, in the order of slots.
pub(super) fn group_by_slot<T>(items: impl IntoIterator<Item = T>, slot: impl Fn(&T) -> u16) -> Vec<Vec<T>> {
    let mut slots = BTreeMap::<_, Vec<_>>::new();
    for item in items {
        slots.entry(slot(&item)).or_default().push(item);
    }
    slots.into_values().collect()
}

/// Computes CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::cluster_routing::Slot;

    use super::*;
    use crate::algorithm::{FixedWindow, Penalty};
    use crate::key::hash::KeyHasher;
    use crate::store::redis::tests::named;
    use crate::store::{DEFAULT_PREFIX, escape};

    fn cell(limit: &str, period: Duration) -> Cell {
        let hasher = KeyHasher::with_secret([0; 16]);
        named(limit, 0, FixedWindow::new(1, period).into(), &hasher).with_key(hasher.hash(b"ann@example.org"), 1)
    }

    fn daily(limit: &str) -> String {
        name(DEFAULT_PREFIX, &cell(limit, Duration::from_secs(86_400)))
    }

    #[test]
    fn a_name_contains_the_hash_in_braces_but_not_the_key() {
        let name = daily("daily");
        assert!(name.starts_with("ratelimit:{") && name.ends_with("}:daily:fw86400s"), "{name}");
        assert_eq!(name.len(), "ratelimit:{}:daily:fw86400s".len() + 32);
        assert!(!name.contains("ann"));
    }

    #[test]
    fn no_two_periods_share_a_key() {
        let end = |period| name(DEFAULT_PREFIX, &cell("limit", period)).split_off("ratelimit:{}:limit:".len() + 32);
        assert_eq!(end(Duration::from_secs(60)), "fw60s");
        assert_eq!(end(Duration::from_millis(1_500)), "fw1500000u");
        assert_eq!(end(Duration::from_micros(1)), "fw1u");
    }

    #[test]
    fn escaped_limit_names_stay_distinct() {
        assert!(daily("a:b {x}*").ends_with("}:a%3ab%20%7bx%7d%2a:fw86400s"));
        assert_ne!(daily("a%3ab"), daily("a:b"));
    }

    #[test]
    fn penalties_and_overrides_have_keys_beside_that_of_their_limit() {
        let minute = Duration::from_secs(60);
        let limit = cell("limit", minute);
        let penalty = limit.of_penalty(Penalty::after(1, minute).algorithm());
        assert_eq!(name("t", &penalty), name("t", &limit) + ":p");
        assert_eq!(name_of_override("t", &limit), name("t", &limit) + ":override");
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        for name in ["", "foo", "{foo}", "a{foo}b", "{}foo", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "a}b{c"] {
            assert_eq!(Slot::new(slot_of(name)), Some(Slot::for_key(name)), "{name:?}");
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
                    assert_eq!(slot_of(&name(&escape(prefix), &cell)), slot_of_key(subject), "{prefix:?} {limit:?}");
                }
            }
        }
    }
}
