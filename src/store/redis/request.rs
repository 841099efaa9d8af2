//! Encodes requests for the script, and decodes its replies, in the format that `lua/main.lua` describes.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::Buf;
use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::error::Fault;
use crate::algorithm::{Algorithm, CompactState, KeyState, Kind, Log, ScriptTag};
use crate::decision::{Charge, Charges, Outcome, PenaltyOutcome, Purpose, Veto, decide};
use crate::store::{Override, StoredOverride};
use crate::time::{Timestamp, ceil_micros};

/// The operation of the script on the keys of a request. Those before `Refund` decide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire,
    Peek,
    /// Charges nothing, like a peek, but counts denials as strikes.
    PeekWithStrikes,
    Refund,
    Renew,
    GetOverride,
    SetOverride,
    /// Deletes the keys.
    Reset,
    /// Charges blocks of tokens besides the costs.
    Lease,
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
        // At most 64 limits apply to a request, each with a penalty.
        Self { keys: SmallVec::new(), body: SmallVec::from_slice(&[task as u8, cells as u8, 0, HEADER as u8, 0]) }
    }

    /// Encodes the decision on charges at about `now` (in µs).
    pub(super) fn decide(prefix: &str, task: Task, now: u64, charges: &Charges) -> Self {
        let mut request = Self::new(task, charges.states().count());
        for (position, charge) in charges.iter().enumerate() {
            request.key(name(prefix, charges, position));
            let (tag, veto) = (tag(charge.algorithm()), charge.veto() as u8);
            request.extend(&[tag, veto, charge.is_overridable().into()]);
            request.arguments(charge, now);
            if charge.is_overridable() {
                request.key(name_of_override(prefix, charges, position));
                let algorithm = charge.algorithm();
                request.numbers([charge.overage_percent.into(), algorithm.at_once(), algorithm.amount.into()]);
            }
            if task == Task::Lease {
                request.numbers([charge.wanted_block()]);
            }
            if let Some(penalty) = charge.penalty() {
                request.key(name_of_penalty(prefix, charges, position));
                request.penalty(penalty, charge.cost);
            }
        }
        request
    }

    /// Encodes the refunds of the charges at these positions.
    pub(super) fn refund(prefix: &str, charges: &Charges, positions: &[usize]) -> Self {
        Self::of_marks(Task::Refund, prefix, charges, positions)
    }

    /// Encodes the renewal of slots of the charge at a position.
    pub(super) fn renew(prefix: &str, charges: &Charges, position: usize) -> Self {
        Self::of_marks(Task::Renew, prefix, charges, &[position])
    }

    /// Encodes a request about charges that were made, with their marks.
    fn of_marks(task: Task, prefix: &str, charges: &Charges, positions: &[usize]) -> Self {
        let mut request = Self::new(task, positions.len());
        for &position in positions {
            let charged = &charges[position];
            request.key(name(prefix, charges, position));
            request.extend(&[tag(charged.algorithm())]);
            request.extend(&encode_state(&charged.mark));
            // Refunds do not depend on the instant.
            request.arguments(charged, 0);
        }
        request
    }

    /// Encodes the removal of the states of the charges at these positions.
    pub(super) fn reset(prefix: &str, charges: &Charges, positions: &[usize]) -> Self {
        let mut request = Self::new(Task::Reset, positions.len());
        for &position in positions {
            request.key(name(prefix, charges, position));
            if charges[position].penalty().is_some() {
                request.key(name_of_penalty(prefix, charges, position));
            }
        }
        request
    }

    /// Encodes setting the override of the first charge.
    pub(super) fn set_override(prefix: &str, charges: &Charges, size: Override) -> Self {
        let mut request = Self::of_override(Task::SetOverride, prefix, charges);
        let span = size.expires_after.map_or(-1.0, |span| ceil_micros(span) as f64);
        request.extend(&span.to_le_bytes());
        request.extend(size.algorithm.size().map(u32::to_le_bytes).as_flattened());
        request
    }

    /// Encodes another operation on the override of the first charge.
    pub(super) fn of_override(task: Task, prefix: &str, charges: &Charges) -> Self {
        let mut request = Self::new(task, 1);
        request.key(name_of_override(prefix, charges, 0));
        request
    }

    /// Appends a key.
    pub(super) fn key(&mut self, key: String) {
        self.keys.push(key);
        self.body[2] = self.keys.len() as u8;
    }

    /// Returns whether it refunds charges of earlier requests.
    pub(super) fn is_refund(&self) -> bool {
        [Task::Refund, Task::Renew].map(|task| task as u8).contains(&self.body[0])
    }

    /// Returns the length of its keys and its body.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.keys.iter().map(String::len).sum::<usize>()
    }

    /// Appends the arguments of a charge for a charge at about `now` (in µs).
    fn arguments(&mut self, charge: &Charge, now: u64) {
        let algorithm = charge.algorithm();
        let hard = algorithm.hard_capacity();
        // Or a smaller cost that exceeds the capacity as well.
        let cost = charge.cost().min(MAX_COST.max(hard + 1));
        // A counter regains no tokens, and has the weight of its previous window instead.
        let amount = if let Kind::Counter(_, weight) = algorithm.kind { weight.into() } else { algorithm.amount };
        self.numbers([cost, algorithm.capacity, hard, amount.into(), algorithm.span]);
        match algorithm.kind {
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
            Kind::Log(buckets) => self.numbers([buckets.map_or(1, |buckets| algorithm.span / u64::from(buckets))]),
            _ => {}
        }
    }

    /// Appends the cell of a penalty, for a charge of its limit.
    fn penalty(&mut self, asked: &PenaltyOutcome, cost: u64) {
        let penalty = &asked.penalty;
        // Zero strikes stand for denials that do not count.
        let strikes = if asked.makes_strikes { penalty.denials.into() } else { 0 };
        self.extend(&[ScriptTag::Penalty as u8, Veto::Enforced as u8, 0]);
        self.numbers([cost.min(1), penalty.first, penalty.first, strikes, penalty.within]);
        self.numbers([penalty.longest(), penalty.remembered]);
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

/// Returns the number by which the script knows an algorithm.
fn tag(algorithm: &Algorithm) -> u8 {
    let (_, _, tag, _) = algorithm.properties();
    tag as u8
}

/// Returns the name `prefix:{hash}:limit:rule` of the key that holds the state of a charge.
///
/// The braces put all limits of one subject into one slot of a Cluster. Algorithms, periods and calendars have
/// different names, because their states are incompatible. A store that wraps a Redis store and has another hasher gives
/// charges no readable name: their keys have the hash of it.
pub(super) fn name(prefix: &str, charges: &Charges, position: usize) -> String {
    let charge = &charges[position];
    let hash = || Cow::Owned(format!("{:032x}", charge.identity.as_u128()));
    let name = charges.readable_name(position).unwrap_or_else(hash);
    // With room for an override's suffix, because growing takes as many instructions as formatting.
    let mut key = String::with_capacity(prefix.len() + name.len() + 48);
    let _ = write!(key, "{prefix}:{{{:032x}}}:{name}", charge.key().as_u128());
    key
}

/// Returns the name of the key that holds the state of a charge's penalty.
fn name_of_penalty(prefix: &str, charges: &Charges, position: usize) -> String {
    name(prefix, charges, position) + ":p"
}

/// Returns the name of the key that holds the override of a charge.
pub(super) fn name_of_override(prefix: &str, charges: &Charges, position: usize) -> String {
    name(prefix, charges, position) + ":override"
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

pub(super) const INVALID_OVERRIDE: Fault = Fault::Reply("an invalid override");

/// The reply to one request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) is_allowed: bool,
    /// Whether Redis refused to write a strike of a denied request, so that none counts.
    lost_strikes: bool,
    /// The state that each key held before the request: for each charge the override of its key, if it can have one, and
    /// its own. A state is empty for a key without one. Most requests have at most two limits.
    pub(super) states: SmallVec<[SmallVec<[u8; KEPT]>; 2]>,
}

impl Reply {
    /// Fills in the answers of charges from the reply of the instant `now` (in µs), by the same algorithms as other
    /// stores. Returns the instant (in µs) from which other overrides may apply.
    pub(super) fn answer(&self, task: Task, purpose: Purpose, charges: &mut [Outcome], now: u64) -> Result<u64, Fault> {
        let mut found = self.states.iter();
        let mut states: SmallVec<[KeyState; 2]> = SmallVec::new();
        let mut until = u64::MAX;
        for outcome in &mut *charges {
            if outcome.is_overridable()
                && let Some(StoredOverride { expires_at, size }) = next_override(&mut found)?
            {
                until = until.min(expires_at);
                if !outcome.charge.resize(size) {
                    return Err(INVALID_OVERRIDE);
                }
            }
            let state = found.next().ok_or(Fault::Reply("expected a state"))?;
            states.push(decode_key(outcome.algorithm(), state).ok_or(Fault::Reply("an invalid state"))?);
            if outcome.penalty().is_some() {
                let state = found.next().ok_or(Fault::Reply("expected a state"))?;
                states.push(KeyState::Compact(decode_compact(state).ok_or(Fault::Reply("an invalid state"))?));
            }
        }
        if found.next().is_some() {
            return Err(Fault::Reply("another number of keys"));
        }
        let charges_nothing = self.lost_strikes || task == Task::PeekWithStrikes && self.is_allowed;
        decide(charges, &mut states, now, if charges_nothing { Purpose::Peek } else { purpose });
        // Script and crate decide by the same states. If they disagree, one of them is of another version or damaged.
        if charges.iter().any(Outcome::denies) == self.is_allowed {
            return Err(Fault::Reply("a verdict that contradicts its states"));
        }
        Ok(until)
    }

    /// Returns the mark of slots that were renewed at `now` (in µs).
    pub(super) fn mark_of_renewal(&self, slots: &Charge, now: u64) -> Result<CompactState, Fault> {
        let [state] = &self.states[..] else { return Err(Fault::Reply("another number of keys")) };
        let mut state = decode_key(slots.algorithm(), state).ok_or(Fault::Reply("an invalid state"))?;
        state.charge(slots.algorithm(), now, slots.cost(), CompactState::UNUSED);
        Ok(state.summary(slots.algorithm(), now))
    }

    /// Parses the first of several replies, and removes it from `bytes`.
    fn parse(bytes: &mut &[u8]) -> Option<Result<Self, Fault>> {
        let verdict = *bytes.split_off_first()?;
        let is_allowed = match verdict {
            b'y' => true,
            b'n' | b'N' => false,
            b'e' => {
                let length = bytes.split_off(..2)?.get_u16_le();
                let error = bytes.split_off(..length.into())?;
                return Some(Err(Fault::script(String::from_utf8_lossy(error).into_owned())));
            }
            _ => return None,
        };
        let keys = *bytes.split_off_first()?;
        let mut state = || {
            let length = *bytes.split_off_first()?;
            bytes.split_off(..length.into()).map(SmallVec::from_slice)
        };
        let states = (0..keys).map(|_| state()).collect::<Option<_>>()?;
        Some(Ok(Self { is_allowed, lost_strikes: verdict == b'N', states }))
    }
}

/// Takes the next of the states in a reply as an override. It is empty if there is none. It is missing in the replies
/// to all operations on overrides but [`Task::GetOverride`].
pub(super) fn next_override<'a>(
    states: &mut impl Iterator<Item = &'a SmallVec<[u8; KEPT]>>,
) -> Result<Option<StoredOverride>, Fault> {
    let Some(state) = states.next().filter(|state| !state.is_empty()) else { return Ok(None) };
    decode_compact(state).map(StoredOverride::of_state).map(Some).ok_or(INVALID_OVERRIDE)
}

/// Parses the reply to a call of so many `requests`. Returns the instant of all decisions (in µs), and the reply to
/// each request, or why it could not be performed.
pub(super) fn parse_replies(reply: Value, requests: usize) -> Result<(u64, Vec<Result<Reply, Fault>>), Fault> {
    let Value::BulkString(reply) = reply else { return Err(Fault::Reply("expected a string")) };
    let mut bytes = &reply[..];
    let now = bytes.split_off(..INSTANT).map(|mut instant| instant.get_uint_le(INSTANT));
    let now = now.filter(|now| *now <= Timestamp::MAX.as_micros()).ok_or(Fault::Reply("expected an instant"))?;
    let replies: Option<Vec<_>> = (0..requests).map(|_| Reply::parse(&mut bytes)).collect();
    match replies {
        Some(replies) if bytes.is_empty() => Ok((now, replies)),
        _ => Err(Fault::Reply("another number of requests")),
    }
}

/// The length of a state, and the instant until which Redis keeps the key, if that is later than its expiry.
const KEPT: usize = STATE + INSTANT;
/// The length of an entry of a log: its instant, and two counts.
const ENTRY: usize = INSTANT + 8;

/// Decodes the state of a key under an algorithm. Returns `None` if no script can have stored it.
pub(super) fn decode_key(algorithm: &Algorithm, bytes: &[u8]) -> Option<KeyState> {
    Some(match algorithm.keeps_log() {
        true => KeyState::Log(Box::new(decode_log(algorithm, bytes)?)),
        false => KeyState::Compact(decode_compact(bytes)?),
    })
}

/// Decodes a compact state, which is empty for an unused one. Returns `None` if no script can have stored it.
pub(super) fn decode_compact(mut bytes: &[u8]) -> Option<CompactState> {
    match bytes.len() {
        0 => Some(CompactState::UNUSED),
        STATE | KEPT => Some(CompactState {
            expires_at: bytes.get_uint_le(INSTANT),
            at: bytes.get_uint_le(INSTANT),
            detail: bytes.get_u64_le(),
        }),
        _ => None,
    }
}

/// Decodes the entries of a log, oldest first: an instant of the bucket, the total up to and including it, and the
/// tokens charged in it. Returns `None` if no script can have stored them.
///
/// The first entry is the oldest one that counts, and the last one the newest. A script may leave out entries between
/// them that its answer does not depend on: the log then decides as if their tokens had been charged in the bucket of
/// the next entry.
fn decode_log(algorithm: &Algorithm, bytes: &[u8]) -> Option<Log> {
    let (entries, []) = bytes.as_chunks::<ENTRY>() else { return None };
    let entry = |mut entry: &[u8]| (entry.get_uint_le(INSTANT), entry.get_u32_le(), entry.get_u32_le());
    Log::of_entries(algorithm, entries.iter().map(|bytes| entry(bytes)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{FixedWindow, Penalty, SlidingLog};
    use crate::key::hash::{KeyHash, KeyHasher};
    use crate::store::DEFAULT_PREFIX;
    use crate::store::redis::tests::named;

    fn charge(limit: &str, period: Duration) -> Charge {
        let hasher = KeyHasher::with_secret([0; 16]);
        Charge::new(0, limit, FixedWindow::new(1, period).into(), &hasher).with_key(hasher.hash(b"ann@example.org"), 1)
    }

    fn name_of(limit: &str, period: Duration) -> String {
        name(DEFAULT_PREFIX, &named(limit, &[charge(limit, period)]), 0)
    }

    fn daily(limit: &str) -> String {
        name_of(limit, Duration::from_secs(86_400))
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
        let end = |period| name_of("limit", period).split_off("ratelimit:{}:limit:".len() + 32);
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
        let limit = charge("limit", minute);
        let mut charges = named("limit", &[limit]);
        charges[0] = Outcome::new(limit, Some(PenaltyOutcome::new(Penalty::after(1, minute))));
        let keys = |charges| Request::reset("t", charges, &[0]).keys.into_vec();
        assert_eq!(keys(&charges), [name("t", &charges, 0), name("t", &charges, 0) + ":p"]);
        assert_eq!(name_of_override("t", &charges, 0), name("t", &charges, 0) + ":override");
        // A request may have another size, with another period.
        let mut sized = charges.clone();
        sized[0].charge.identity = KeyHash::ZERO;
        sized[0].charge.algorithm = FixedWindow::per_hour(1).into();
        assert_eq!(keys(&sized), keys(&charges).iter().map(|key| key.replace("fw60s", "fw3600s")).collect::<Vec<_>>());
    }

    #[test]
    fn a_reply_of_another_length_than_its_requests_need_is_an_error() {
        let mut reply = 1_u64.to_le_bytes()[..INSTANT].to_vec();
        // Two allowed requests, with one limit each, whose keys held no state.
        reply.extend(*b"y\x01\0y\x01\0");
        let parse = |reply: &[u8], requests| parse_replies(Value::BulkString(reply.to_vec()), requests);
        assert_eq!(parse(&reply, 2).unwrap().1.len(), 2);
        for length in 0..reply.len() {
            assert!(matches!(parse(&reply[..length], 2), Err(Fault::Reply(_))), "{length} bytes");
        }
        assert!(matches!(parse(&reply, 1), Err(Fault::Reply("another number of requests"))), "a reply to two requests");
        for trailing in [0, b'y'] {
            reply.push(trailing);
            assert!(matches!(parse(&reply, 2), Err(Fault::Reply("another number of requests"))), "trailing bytes");
        }
    }

    #[test]
    fn an_instant_past_the_largest_timestamp_is_an_error() {
        let parse = |now: u64| parse_replies(Value::BulkString(now.to_le_bytes()[..INSTANT].to_vec()), 0);
        let last = Timestamp::MAX.as_micros();
        assert_eq!(parse(last).unwrap().0, last);
        assert!(matches!(parse(last + 1), Err(Fault::Reply("expected an instant"))));
    }

    /// Returns the answer to a request of one limit, of 1 token per minute, whose keys held these states.
    fn answer(is_allowed: bool, states: &[&[u8]]) -> Result<u64, Fault> {
        let (hasher, window) = (KeyHasher::with_secret([0; 16]), FixedWindow::per_minute(1).into());
        let mut charges = Charges::of([Charge::new(0, "limit", window, &hasher).with_key(hasher.hash(b"key"), 1)]);
        let states = states.iter().map(|state| SmallVec::from_slice(state)).collect();
        Reply { is_allowed, lost_strikes: false, states }.answer(Task::Acquire, Purpose::Take, &mut charges, 1)
    }

    #[test]
    fn a_verdict_that_contradicts_its_states_is_an_error() {
        let used = encode_state(&CompactState { expires_at: 60_000_000, at: 0, detail: 1 });
        for (state, has_room) in [(&b""[..], true), (&used, false)] {
            assert!(answer(has_room, &[state]).is_ok(), "{has_room}");
            let Err(fault) = answer(!has_room, &[state]) else { panic!("{has_room}") };
            assert!(matches!(fault, Fault::Reply("a verdict that contradicts its states")), "{fault}");
        }
    }

    #[test]
    fn a_state_too_few_or_too_many_is_an_error() {
        assert!(matches!(answer(true, &[]), Err(Fault::Reply("expected a state"))));
        assert!(matches!(answer(true, &[b"", b""]), Err(Fault::Reply("another number of keys"))));
    }

    #[test]
    fn states_survive_a_round_trip() {
        for instant in [0, 1, 1 << 52, (1 << 56) - 1] {
            let state = CompactState { expires_at: instant, at: instant / 2, detail: u64::MAX - 7 };
            assert_eq!(decode_compact(&encode_state(&state)), Some(state));
            assert_eq!(decode_compact(&[&encode_state(&state)[..], &[7; INSTANT]].concat()), Some(state));
        }
        assert_eq!(decode_compact(b""), Some(CompactState::UNUSED));
    }

    #[test]
    fn malformed_states_are_errors() {
        let log = SlidingLog::per_second(1).into();
        assert_eq!(decode_compact(b"17"), None);
        assert_eq!(decode_log(&log, b"17"), None);
    }
}
