//! Random traces: the script agrees with the algorithms in Rust, in this process and on a real server.
#![allow(clippy::print_stdout, reason = "how many steps were compared")]

mod batches;
mod fake;
mod random;
mod redis_server;
mod split_mix;
mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::Buf;
use deadpool_redis::redis;
use deadpool_redis::redis::aio::MultiplexedConnection;

use self::batches::Batches;
use self::fake::{Fake, Held};
use self::random::Random;
use self::redis_server::RedisServer;
use self::trace::{Done, Trace};
use super::config::RedisConfig;
use super::connector::Connector;
use super::error::Fault;
use super::request::{self, INSTANT, Reply, Request, STATE, Task, parse_replies};
use crate::algorithm::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucketQueue, Penalty, ScriptTag, SlidingLog, TokenBucket,
};
use crate::decision::{Charge, Charges, Outcome, PenaltyOutcome, Purpose, Texts};
use crate::key::hash::KeyHasher;
use crate::store::{Override, escape};

/// Reads an environment variable: `TWIN_STEPS` is the number of steps to compare, and `TWIN_SEED` the first trace,
/// which is then printed.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns charges of a limit, with the name that a limiter gives it.
pub(super) fn named(name: &str, charges: &[Charge]) -> Charges {
    let mut named = Charges::new(&Some(Texts::new([escape(name)].into_iter(), charges.iter())));
    charges.iter().for_each(|charge| named.push(*charge));
    named
}

/// The server that runs the script.
enum Redis {
    Fake(Fake),
    Real(String, MultiplexedConnection, tokio::runtime::Runtime),
}

impl Redis {
    fn real(server: &RedisServer) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A loaded machine may stop for longer than the default timeout.
        let long = Duration::from_secs(30);
        let config = RedisConfig::node(server.url()).connect_timeout(long).response_timeout(long);
        let connector = Connector::new(config, None);
        let connection = runtime.block_on(connector.connect()).unwrap();
        Self::Real(connector.hash().to_owned(), connection, runtime)
    }

    fn run(&self, clock: &[u8], requests: &[Request]) -> (u64, Vec<Result<Reply, Fault>>) {
        match self {
            Self::Fake(fake) => parse_replies(fake.run(clock, requests), requests.len()).unwrap(),
            Self::Real(hash, connection, runtime) => {
                let call = request::evalsha(hash, clock, requests);
                let reply = runtime.block_on(call.query_async(&mut connection.clone())).unwrap();
                parse_replies(reply, requests.len()).unwrap()
            }
        }
    }

    fn fake(&self) -> Option<&Fake> {
        match self {
            Self::Fake(fake) => Some(fake),
            Self::Real(..) => None,
        }
    }
}

/// Compares this many steps, in traces with consecutive seeds from `first` on.
fn compare(redis: &Redis, first: u64, steps: u64, trace: impl Fn(u64) -> Done) {
    let (mut done, mut allowed, mut begun) = (0, 0, 0);
    let first = variable("TWIN_SEED").unwrap_or(0) + first;
    for seed in first.. {
        match catch_unwind(AssertUnwindSafe(|| trace(seed))) {
            Ok(of_trace) => {
                done += of_trace.steps;
                allowed += of_trace.allowed;
                begun += of_trace.begun;
            }
            Err(_) => panic!("the trace of seed {seed} differs"),
        }
        if let Some(fake) = redis.fake() {
            fake.keys.borrow_mut().clear();
        }
        if done > steps {
            println!(
                "{done} steps compared, in {} traces; {allowed} requests were allowed, {begun} lockouts began",
                seed + 1 - first
            );
            assert!((done / 8..done * 7 / 8).contains(&allowed), "{allowed} of {done} steps allowed a request");
            assert!(begun > done / 1_000, "only {begun} of {done} steps began a lockout");
            return;
        }
    }
}

fn traces(redis: &Redis, first: u64, steps: u64) {
    // Most traces are short, to cover many limits. Some fill logs.
    compare(redis, first, steps, |seed| Trace::new(seed, redis).run(if seed % 64 == 63 { 1_500 } else { 40 }));
}

fn batches(redis: &Redis, steps: u64) {
    compare(redis, 0, steps, |seed| Batches::new(seed, redis).run(if seed % 16 == 15 { 100 } else { 20 }));
}

#[test]
fn twins_agree() {
    let steps = variable("TWIN_STEPS").unwrap_or(200_000);
    // In one thread, this would be the slowest test of the crate.
    std::thread::scope(|scope| {
        for first in [0, 1 << 32] {
            scope.spawn(move || traces(&Redis::Fake(Fake::new()), first, steps / 2));
        }
    });
}

/// A former bug: a refund after a large step back computed a count that did not fit into the state.
#[test]
fn a_refund_long_before_an_interval_fits() {
    Trace::new(10_966, &Redis::Fake(Fake::new())).run(40);
}

#[test]
fn a_real_server_agrees_with_memory() {
    let server = RedisServer::start();
    traces(&Redis::real(&server), 0, 20_000);

    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert!(!keys.is_empty());
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        assert!(ttl > 0 || key.ends_with(":override"), "{key} has no TTL");
    }
}

#[test]
fn a_batch_agrees_with_sequential_requests_in_memory() {
    batches(&Redis::Fake(Fake::new()), variable("TWIN_STEPS").unwrap_or(40_000));
}

#[test]
fn a_batch_on_a_real_server_agrees_with_sequential_requests_in_memory() {
    batches(&Redis::real(&RedisServer::start()), 20_000);
}

const NOON: u64 = 1_767_225_600_000_000;

fn all(charges: &[Charge]) -> Charges {
    Charges::of(charges.iter().copied())
}

/// Returns a charge with a penalty.
pub(super) fn punished(charge: Charge, penalty: Penalty) -> Charges {
    Charges::of([Outcome::new(charge, Some(PenaltyOutcome::new(penalty)))])
}

/// Returns the name of the key of a charge.
fn name(charge: Charge) -> String {
    request::name("t", &all(&[charge]), 0)
}

fn decide(task: Task, charges: &[Charge]) -> Request {
    Request::decide("t", task, NOON, &all(charges))
}

/// Runs a request that charges, and returns the reply.
fn charge(fake: &Fake, charges: &[Charge]) -> Result<Reply, Fault> {
    run(fake, decide(Task::Acquire, charges))
}

fn run(fake: &Fake, request: Request) -> Result<Reply, Fault> {
    parse_replies(fake.run(&request::encode_clock(NOON), &[request]), 1).unwrap().1.remove(0)
}

/// After a change of the limit, the state of a bucket may expire before its key does. The key is kept for a second more.
#[test]
fn a_state_tells_how_long_its_key_is_kept() {
    let (fake, hasher) = (Fake::new(), KeyHasher::with_secret([0; 16]));
    fake.time.set(NOON);
    for (amount, cost) in [(60, 100), (62, 1), (64, 1), (60, 1), (600, 1), (60, 500), (61, 1)] {
        let limit = TokenBucket::new(1_000, amount, Duration::from_secs(60)).into();
        let charges = [Charge::new(0, "limit", limit, &hasher).with_key(hasher.hash(b"key"), cost)];
        fake.run(&[], &[decide(Task::Acquire, &charges)]);
        let keys = fake.keys.borrow();
        let (Held::Text(state), Some(last)) = &keys[name(charges[0]).as_bytes()] else { panic!("{keys:?}") };
        let place = if state.len() > STATE { STATE } else { 0 };
        let kept = (&state[place..]).get_uint_le(INSTANT);
        assert_eq!(*last, kept.div_ceil(1_000) + 1_000, "{amount}, {cost}");
    }
}

/// The shared encoding of several requests does not include their keys.
#[test]
fn similar_requests_charge_their_own_keys() {
    let fake = Fake::new();
    let hasher = KeyHasher::with_secret([0; 16]);
    let minute = Duration::from_secs(60);
    let limits = [TokenBucket::new(50, 1, minute).into(), FixedWindow::new(50, minute).into()];
    let limits =
        [0, 1].map(|limit: u16| Charge::new(limit, &format!("limit {limit}"), limits[usize::from(limit)], &hasher));
    let asked = |key: &str, cost| limits.each_ref().map(|limit| limit.with_key(hasher.hash(key.as_bytes()), cost));
    let requests = [("ann", 1), ("bob", 1), ("bob", 1), ("cleo", 1), ("ann", 7), ("cleo", 7), ("bob", 1)]
        .map(|(key, cost)| decide(Task::Acquire, &asked(key, cost)));
    let lengths = requests.each_ref().map(|request| request::encode(std::slice::from_ref(request)).len());
    assert_eq!(request::encode(&requests).len(), lengths[0] + 3 + lengths[4] + 1 + lengths[6]);

    let (_, replies) = parse_replies(fake.run(&request::encode_clock(NOON), &requests), requests.len()).unwrap();
    assert!(replies.into_iter().all(|found| found.unwrap().is_allowed));
    for (key, taken) in [("ann", 8), ("bob", 3), ("cleo", 8), ("dora", 0)] {
        let mut charges = all(&asked(key, 1));
        let reply = fake.run(&request::encode_clock(NOON), &[decide(Task::Peek, &asked(key, 1))]);
        let found = parse_replies(reply, 1).unwrap().1.remove(0).unwrap();
        found.answer(Task::Peek, Purpose::Peek, &mut charges, NOON).unwrap();
        assert!(charges.iter().all(|outcome| outcome.remaining() == 50 - taken), "{key}");
    }
}

/// Of several equal requests, one that fails does not affect the others, even if it is the first.
#[test]
fn a_malformed_key_fails_only_its_own_request() {
    let hasher = KeyHasher::with_secret([0; 16]);
    let minute = Duration::from_secs(60);
    let bucket: Algorithm = TokenBucket::new(2, 1, minute).into();
    for algorithms in
        [vec![bucket], vec![FixedWindow::new(2, minute).into()], vec![bucket, FixedWindow::new(9, minute).into()]]
    {
        for broken in 0..3 {
            let fake = Fake::new();
            let limit = |(algorithm, limit): (&Algorithm, u16)| {
                Charge::new(limit, &format!("limit {limit}"), *algorithm, &hasher)
            };
            let limits: Vec<_> = algorithms.iter().zip(0..).map(limit).collect();
            // The third request of each key is denied.
            let requests = [0, 1, 2, 0, 1, 2, 0, 1, 2].map(|key| {
                let charges: Vec<_> = limits.iter().map(|limit| limit.with_key(hasher.hash(&[key]), 1)).collect();
                decide(Task::Acquire, &charges)
            });
            let name = requests[broken].keys[0].clone().into_bytes();
            fake.keys.borrow_mut().insert(name, (Held::Text(b"broken".to_vec()), Some(u64::MAX)));
            let (_, replies) =
                parse_replies(fake.run(&request::encode_clock(NOON), &requests), requests.len()).unwrap();
            for (place, found) in replies.into_iter().enumerate() {
                match found {
                    Err(fault) => assert!(place % 3 == broken && fault.to_string().contains("UNREADABLE"), "{fault}"),
                    Ok(found) => assert_eq!((place % 3 != broken, found.is_allowed), (true, place < 6)),
                }
            }
        }
    }
}

/// Otherwise, the list of a busy key would grow without end.
#[test]
fn a_charge_drops_the_entries_that_have_expired() {
    let (fake, hasher) = (Fake::new(), KeyHasher::with_secret([0; 16]));
    let log = SlidingLog::new(50, Duration::from_secs(60)).into();
    let charges = [Charge::new(0, "limit", log, &hasher).with_key(hasher.hash(b"key"), 1)];
    for round in 0..10 {
        let clock = request::encode_clock(NOON + round * 25_000_000);
        let (_, replies) = parse_replies(fake.run(&clock, &[decide(Task::Acquire, &charges)]), 1).unwrap();
        assert!(replies.into_iter().all(|reply| reply.unwrap().is_allowed));
        let keys = fake.keys.borrow();
        let Held::List(entries) = &keys[name(charges[0]).as_bytes()].0 else { panic!("{keys:?}") };
        assert_eq!(entries.len() as u64, (round + 1).min(3), "round {round}");
    }
}

/// Nothing is charged, although the override of another key in the same request is valid.
#[test]
fn a_malformed_override_fails_only_its_own_request() {
    let fake = Fake::new();
    let hasher = KeyHasher::with_secret([0; 16]);
    let window = FixedWindow::new(50, Duration::from_secs(60)).into();
    let charges = [0, 1].map(|limit: u16| {
        let mut charge =
            Charge::new(limit, &format!("limit {limit}"), window, &hasher).with_key(hasher.hash(b"key"), 1);
        charge.is_overridable = true;
        charge
    });
    let valid = Held::Text([[0; 14].as_slice(), &7_u32.to_le_bytes(), &[0; 4]].concat());
    for (outcome, held) in charges.iter().zip([valid, Held::List([b"broken".to_vec()].into())]) {
        fake.keys
            .borrow_mut()
            .insert(request::name_of_override("t", &all(&[*outcome]), 0).into_bytes(), (held, Some(u64::MAX)));
    }
    for broken in [&charges[1..], &charges] {
        assert!(charge(&fake, broken).unwrap_err().to_string().contains("WRONGTYPE"));
        assert_eq!(fake.keys.borrow().len(), 2);
    }
    let reply = charge(&fake, &charges[..1]).unwrap();
    let mut answered = all(&charges[..1]);
    reply.answer(Task::Acquire, Purpose::Take, &mut answered, NOON).unwrap();
    assert_eq!(answered[0].remaining(), 6);
}

/// A remembered denial must not outlast any of the overrides by which it was decided.
#[test]
fn an_answer_holds_until_the_first_override_expires() {
    let (hasher, window) = (KeyHasher::with_secret([0; 16]), FixedWindow::new(50, Duration::from_secs(60)).into());
    for spans in [[Some(5), Some(9)], [Some(9), Some(5)], [Some(5), None], [None, Some(5)]] {
        let fake = Fake::new();
        let charges = [0, 1].map(|limit: u16| {
            let mut charge =
                Charge::new(limit, &format!("limit {limit}"), window, &hasher).with_key(hasher.hash(b"key"), 1);
            charge.is_overridable = true;
            charge
        });
        for (outcome, span) in charges.iter().zip(spans) {
            let algorithm = FixedWindow::new(7, Duration::from_secs(60)).into();
            let expires_after = span.map(Duration::from_micros);
            let request = Request::set_override("t", &all(&[*outcome]), Override { algorithm, expires_after });
            assert!(parse_replies(fake.run(&request::encode_clock(NOON), &[request]), 1).unwrap().1[0].is_ok());
        }
        let reply = charge(&fake, &charges).unwrap();
        let until = reply.answer(Task::Acquire, Purpose::Take, &mut all(&charges), NOON).unwrap();
        assert_eq!(until, NOON + 5, "{spans:?}");
    }
}

/// A queue's burst leaves less room for it than the largest number of tokens that may wait.
#[test]
fn the_overage_of_an_overridable_queue_is_in_range() {
    let hasher = KeyHasher::with_secret([0; 16]);
    let queue = LeakyBucketQueue::new(u32::MAX - 4, 1, Duration::from_micros(1)).burst(2).into();
    let mut limit = Charge::new(0, "limit", queue, &hasher);
    limit.set_overage(50);
    limit.is_overridable = true;
    for (cost, has_room) in [((1 << 32) + 1, false), (1 << 32, true)] {
        let charges = [limit.with_key(hasher.hash(b"key"), cost)];
        let reply = charge(&Fake::new(), &charges).unwrap();
        assert_eq!(reply.is_allowed, has_room, "{cost}");
        reply.answer(Task::Acquire, Purpose::Take, &mut all(&charges), NOON).unwrap();
    }
}

/// A request contains the window before the sender's own to the second one after it.
#[test]
fn a_calendar_window_that_was_not_sent_is_never_charged() {
    const DAY: u64 = 86_400_000_000;
    let (fake, hasher) = (Fake::new(), KeyHasher::with_secret([0; 16]));
    let daily = CalendarWindow::daily(50).into();
    let charges = [Charge::new(0, "limit", daily, &hasher).with_key(hasher.hash(b"key"), 1)];
    for (now, is_sent) in
        [(NOON - DAY - 1, false), (NOON - DAY, true), (NOON + 3 * DAY - 1, true), (NOON + 3 * DAY, false)]
    {
        let reply = fake.run(&request::encode_clock(now), &[decide(Task::Acquire, &charges)]);
        match parse_replies(reply, 1).unwrap().1.remove(0) {
            Ok(reply) => assert!(is_sent && reply.is_allowed, "{now}"),
            Err(fault) => assert!(!is_sent && fault.redis_clock() == Some(now - now % 1_000_000), "{now}: {fault}"),
        }
        fake.keys.borrow_mut().clear();
    }
}

/// A further level would be taken for the mark of a level that ends later than the strikes.
#[test]
fn a_lockout_has_at_most_level_63() {
    let fake = Fake::new();
    let (hasher, minute) = (KeyHasher::with_secret([0; 16]), Duration::from_secs(60));
    let limit = Charge::new(0, "limit", FixedWindow::new(1, minute).into(), &hasher).with_key(hasher.hash(b"key"), 2);
    let charges = punished(limit, Penalty::after(1, minute).locked_out_for(minute));
    // The last lockout has ended, and is remembered.
    let [expires_at, at] = [NOON + 1_000_000, NOON - 1].map(|instant| instant.to_le_bytes()[..7].to_vec());
    let held = [expires_at, at, 0_u32.to_le_bytes().to_vec(), 63_u32.to_le_bytes().to_vec()].concat();
    let name = (name(limit) + ":p").into_bytes();
    fake.keys.borrow_mut().insert(name.clone(), (Held::Text(held), Some(u64::MAX)));
    assert!(!run(&fake, Request::decide("t", Task::Acquire, NOON, &charges)).unwrap().is_allowed);
    let keys = fake.keys.borrow();
    let (Held::Text(held), _) = &keys[&name] else { panic!("{keys:?}") };
    assert_eq!((held[14..18].to_vec(), held[18..22].to_vec()), (vec![0; 4], vec![63, 0, 0, 0]), "{held:?}");
}

#[test]
fn an_unknown_algorithm_tag_fails_only_its_own_request() {
    let limit = |tag| {
        let mut request = Request::new(Task::Acquire, 1);
        request.key("key".to_owned());
        request.extend(&[tag, 0, 0]);
        request.extend(&[1.0, 5.0, 5.0, 0.0, 60e6_f64].map(f64::to_le_bytes).concat());
        request
    };
    let (known, unknown) = (ScriptTag::FixedWindow as u8, u8::MAX);
    let requests = [known, unknown, unknown, known].map(limit);
    let (_, replies) = parse_replies(Fake::new().run(&request::encode_clock(NOON), &requests), requests.len()).unwrap();
    for (reply, is_known) in replies.into_iter().zip([true, false, false, true]) {
        match reply {
            Ok(reply) => assert!(is_known && reply.is_allowed),
            Err(fault) => assert!(!is_known && fault.to_string().contains("tag 255"), "{fault}"),
        }
    }
}

/// A limit is changed while keys have states of the old one, or malformed ones.
#[test]
fn arbitrary_values_never_panic() {
    let fake = Fake::new();
    let hasher = KeyHasher::with_secret([0; 16]);
    let key = hasher.hash(b"key");
    let mut random = Random(1);
    for _ in 0..2_000 {
        fake.keys.borrow_mut().clear();
        let kind = random.below(9);
        let changes = random.one_in(2);
        let mut now = NOON;
        for _ in 0..20 {
            let limit = Charge::new(0, "limit", random.algorithm(kind), &hasher);
            let cost = random.cost(limit.algorithm().capacity());
            let mut charges = punished(limit.with_key(key, cost), random.penalty());
            now += random.up_to(1 << 40);
            let request = Request::decide("t", Task::Acquire, now, &charges);
            if !changes {
                let bytes = |random: &mut Random| {
                    let bytes: Vec<u8> =
                        (0..29).map(|_| if random.one_in(3) { 0 } else { random.next() as u8 }).collect();
                    bytes[..random.up_to(29) as usize].to_vec()
                };
                let all_bytes = |random: &mut Random| (0..22).map(|_| random.next() as u8).collect();
                let held = match random.below(2) {
                    0 => Held::Text(bytes(&mut random)),
                    _ => Held::List((0..random.up_to(5)).map(|_| bytes(&mut random)).collect()),
                };
                fake.keys.borrow_mut().insert(request.keys[0].clone().into_bytes(), (held, Some(u64::MAX)));
                let held = Held::Text(if random.one_in(4) { bytes(&mut random) } else { all_bytes(&mut random) });
                fake.keys.borrow_mut().insert(request.keys[1].clone().into_bytes(), (held, Some(u64::MAX)));
            }
            let reply = fake.run(&request::encode_clock(now), &[request]);
            let found = parse_replies(reply, 1).unwrap().1.remove(0);
            let answered = found.and_then(|found| found.answer(Task::Acquire, Purpose::Take, &mut charges, now));
            assert!(!changes || answered.is_ok(), "{charges:?} {answered:?}");
        }
    }
}
