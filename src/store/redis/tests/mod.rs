//! Random traces: the script agrees with the algorithms in Rust, in this process and on a real server.
#![allow(clippy::print_stdout, reason = "how many steps were compared")]

mod batches;
mod fake;
mod random;
#[path = "../../../../tests/support/redis_server.rs"]
mod redis_server;
#[path = "../../../../tests/support/split_mix.rs"]
mod split_mix;
mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Connection;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, IntoConnectionInfo};

use self::batches::Batches;
use self::fake::{Fake, Held};
use self::random::Random;
use self::redis_server::RedisServer;
use self::trace::{Done, Trace};
use super::charge::override_cache::OverrideCache;
use super::charge::prepared::PreparedCharge;
use super::charge::{outcomes, requests};
use super::connector::Connector;
use super::script::{self, LimitArgs, Mode, Replies, Request, Task};
use crate::algorithm::{Algorithm, FixedWindow, TokenBucket};
use crate::hash::KeyHasher;
use crate::limit_spec::LimitSettings;
use crate::store::{Charge, LimitSpec};

/// Reads an environment variable: `TWIN_STEPS` is the number of steps to compare, and `TWIN_SEED` the first trace,
/// which is then printed.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The server that runs the script.
enum Redis {
    Fake(Fake),
    Real(String, MultiplexedConnection, tokio::runtime::Runtime),
}

impl Redis {
    fn real(server: &RedisServer) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let info = server.url().into_connection_info().unwrap();
        // A loaded machine may stop for longer than the default timeout.
        let long = Some(Duration::from_secs(30));
        let config = AsyncConnectionConfig::new().set_connection_timeout(long).set_response_timeout(long);
        let connector = Connector::to_server(info, config, 1).unwrap();
        let connection = runtime.block_on(connector.connect()).unwrap();
        Self::Real(connector.hash().to_owned(), Connection::take(connection), runtime)
    }

    fn run(&self, clock: &[u8], requests: &[Request]) -> Replies {
        match self {
            Self::Fake(fake) => Replies::parse(fake.run(clock, requests), requests.len()).unwrap(),
            Self::Real(hash, connection, runtime) => {
                let call = script::evalsha(hash, clock, requests);
                let reply = runtime.block_on(call.query_async(&mut connection.clone())).unwrap();
                Replies::parse(reply, requests.len()).unwrap()
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

/// Compares this many steps, in traces with consecutive seeds.
fn compare(redis: &Redis, steps: u64, trace: impl Fn(u64) -> Done) {
    let (mut done, mut allowed, mut begun) = (0, 0, 0);
    for seed in variable("TWIN_SEED").unwrap_or(0).. {
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
                seed + 1
            );
            assert!((done / 8..done * 7 / 8).contains(&allowed), "{allowed} of {done} steps allowed a request");
            assert!(begun > done / 1_000, "only {begun} of {done} steps began a lockout");
            return;
        }
    }
}

fn traces(redis: &Redis, steps: u64) {
    // Most traces are short, to cover many limits. Some fill logs.
    compare(redis, steps, |seed| Trace::new(seed, redis).run(if seed % 64 == 63 { 1_500 } else { 40 }));
}

fn batches(redis: &Redis, steps: u64) {
    compare(redis, steps, |seed| Batches::new(seed, redis).run(if seed % 16 == 15 { 100 } else { 20 }));
}

#[test]
fn twins_agree() {
    traces(&Redis::Fake(Fake::new()), variable("TWIN_STEPS").unwrap_or(200_000));
}

/// A former bug: a refund after a large step back computed a count that did not fit into the state.
#[test]
fn a_refund_long_before_an_interval_fits() {
    Trace::new(10_966, &Redis::Fake(Fake::new())).run(40);
}

#[test]
fn a_real_server_agrees_with_memory() {
    let server = RedisServer::start();
    traces(&Redis::real(&server), 20_000);

    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert!(!keys.is_empty());
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        assert!(ttl > 0, "{key} has no TTL");
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

/// The shared encoding of several requests does not include their keys.
#[test]
fn similar_requests_charge_their_own_keys() {
    let fake = Fake::new();
    let hasher = KeyHasher::with_secret([0; 16]);
    let minute = Duration::from_secs(60);
    let algorithms = [TokenBucket::new(50, 1, minute).into(), FixedWindow::new(50, minute).into()];
    let spec = [0, 1].map(|limit: u16| {
        let name = format!("limit {limit}");
        Arc::new(LimitSpec::new(LimitSettings::new(name.into(), limit, algorithms[usize::from(limit)]), &hasher))
    });
    let now = 1_767_225_600_000_000;
    let asked = |key: &str, cost| {
        let key = hasher.hash(key.as_bytes());
        [0, 1].map(|limit: usize| {
            PreparedCharge::new(&Charge { spec: &spec[limit], key, cost }, &OverrideCache::default())
        })
    };
    let ask = |task, key, cost| requests::decide("t", task, now, &asked(key, cost));
    let requests = [("ann", 1), ("bob", 1), ("bob", 1), ("cleo", 1), ("ann", 7), ("cleo", 7), ("bob", 1)]
        .map(|(key, cost)| ask(Task::Acquire, key, cost));
    let lengths = requests.each_ref().map(|request| script::encode(std::slice::from_ref(request)).len());
    assert_eq!(script::encode(&requests).len(), lengths[0] + 3 + lengths[4] + 1 + lengths[6]);

    let replies = Replies::parse(fake.run(&script::encode_clock(now), &requests), requests.len()).unwrap();
    assert!(replies.replies.into_iter().all(|found| found.unwrap().is_allowed()));
    for (key, taken) in [("ann", 8), ("bob", 3), ("cleo", 8), ("dora", 0)] {
        let reply = fake.run(&script::encode_clock(now), &[ask(Task::Peek, key, 1)]);
        let found = Replies::parse(reply, 1).unwrap().replies.remove(0).unwrap();
        let decision = outcomes::decision(Task::Peek, now, &asked(key, 1), &found).unwrap();
        assert_eq!([0, 1].map(|limit: usize| decision.outcomes()[limit].remaining()), [50 - taken; 2], "{key}");
    }
}

/// The cached encoding of a limit is not used for a limit that is derived from it.
#[test]
fn a_derived_limit_is_encoded_again() {
    let hasher = KeyHasher::with_secret([0; 16]);
    let algorithm = TokenBucket::new(50, 1, Duration::from_secs(60)).into();
    let limit = Arc::new(LimitSpec::new(LimitSettings::new("limit".into(), 0, algorithm), &hasher));
    let encoded = |spec: &Arc<LimitSpec>, cost| {
        let charge = Charge { spec, key: hasher.hash(b"key"), cost };
        script::encode(&[requests::decide(
            "t",
            Task::Acquire,
            0,
            &[PreparedCharge::new(&charge, &OverrideCache::default())],
        )])
    };
    let usual = encoded(&limit, 1);
    assert_eq!(usual, encoded(&limit, 1));
    for other in [limit.in_shadow(), limit.with_override([7, 1]).unwrap()] {
        assert_ne!(encoded(&Arc::new(other), 1), usual);
    }
    assert_ne!(encoded(&limit, 2), usual);
    assert_eq!(encoded(&Arc::new(LimitSpec::clone(&limit)), 1), usual);
}

/// Of several equal requests, one that fails does not affect the others, even if it is the first.
#[test]
fn a_malformed_key_fails_only_its_own_request() {
    let hasher = KeyHasher::with_secret([0; 16]);
    let minute = Duration::from_secs(60);
    let now = 1_767_225_600_000_000;
    let bucket: Algorithm = TokenBucket::new(2, 1, minute).into();
    for limits in
        [vec![bucket], vec![FixedWindow::new(2, minute).into()], vec![bucket, FixedWindow::new(9, minute).into()]]
    {
        for broken in 0..3 {
            let fake = Fake::new();
            let spec: Vec<_> = limits
                .iter()
                .zip(0..)
                .map(|(&algorithm, limit)| {
                    Arc::new(LimitSpec::new(
                        LimitSettings::new(format!("limit {limit}").into(), limit, algorithm),
                        &hasher,
                    ))
                })
                .collect();
            // The third request of each key is denied.
            let keys = [0, 1, 2, 0, 1, 2, 0, 1, 2].map(|key: usize| hasher.hash(&[key as u8]));
            let name = super::key::name("t", &spec[0], keys[broken]).into_bytes();
            fake.keys.borrow_mut().insert(name, (Held::Text(b"broken".to_vec()), Some(u64::MAX)));
            let requests = keys.map(|key| {
                let asked = spec
                    .iter()
                    .map(|spec| PreparedCharge::new(&Charge { spec, key, cost: 1 }, &OverrideCache::default()));
                requests::decide("t", Task::Acquire, now, &asked.collect::<Vec<_>>())
            });
            let replies = Replies::parse(fake.run(&script::encode_clock(now), &requests), requests.len()).unwrap();
            for (place, found) in replies.replies.into_iter().enumerate() {
                match found {
                    Err(fault) => assert!(place % 3 == broken && fault.to_string().contains("UNREADABLE"), "{fault}"),
                    Ok(found) => assert_eq!((place % 3 != broken, found.is_allowed()), (true, place < 6)),
                }
            }
        }
    }
}

/// The error of a malformed override takes precedence over a stale override of another key in the same request. Nothing
/// is charged.
#[test]
fn a_malformed_override_fails_only_its_own_request() {
    let fake = Fake::new();
    let hasher = KeyHasher::with_secret([0; 16]);
    let key = hasher.hash(b"key");
    let window = FixedWindow::new(50, Duration::from_secs(60)).into();
    let spec = [0, 1].map(|limit: u16| {
        let settings = LimitSettings::new(format!("limit {limit}").into(), limit, window);
        Arc::new(LimitSpec::new(LimitSettings { is_overridable: true, ..settings }, &hasher))
    });
    let changed = Held::Text([[0; 14].as_slice(), &7_u32.to_le_bytes(), &[0; 4]].concat());
    for (spec, held) in spec.iter().zip([changed, Held::List([b"broken".to_vec()].into())]) {
        let name = super::key::of_override("t", spec, key);
        fake.keys.borrow_mut().insert(name.into_bytes(), (held, Some(u64::MAX)));
    }
    let now = 1_767_225_600_000_000;
    let ask = |limits: &[Arc<LimitSpec>]| {
        let asked =
            limits.iter().map(|spec| PreparedCharge::new(&Charge { spec, key, cost: 1 }, &OverrideCache::default()));
        let request = requests::decide("t", Task::Acquire, now, &asked.collect::<Vec<_>>());
        Replies::parse(fake.run(&script::encode_clock(now), &[request]), 1).unwrap().replies.remove(0)
    };
    assert!(ask(&spec[..1]).unwrap().has_override_changed());
    for broken in [&spec[1..], &spec] {
        assert!(ask(broken).unwrap_err().to_string().contains("WRONGTYPE"));
        assert_eq!(fake.keys.borrow().len(), 2);
    }
}

#[test]
fn an_unknown_algorithm_tag_fails_only_its_own_request() {
    let limit = |tag| {
        let mut request = Request::new(Task::Acquire, 1);
        let args = [1.0, 5.0, 60e6].into_iter().collect();
        request.limit(LimitArgs {
            tag,
            mode: Mode::Enforced,
            key: "key".to_owned(),
            args,
            expected_override: None,
            penalty: None,
        });
        request
    };
    let requests = [b'w', b'z', b'z', b'w'].map(limit);
    let clock = script::encode_clock(1_767_225_600_000_000);
    let replies = Replies::parse(Fake::new().run(&clock, &requests), requests.len()).unwrap().replies;
    for (reply, is_known) in replies.into_iter().zip([true, false, false, true]) {
        match reply {
            Ok(reply) => assert!(is_known && reply.is_allowed()),
            Err(fault) => assert!(!is_known && fault.to_string().contains("tag z"), "{fault}"),
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
        let mut now = 1_767_225_600_000_000;
        for _ in 0..20 {
            let mut settings = LimitSettings::new("limit".into(), 0, random.algorithm(kind));
            settings.penalty = Some(random.penalty());
            let spec = Arc::new(LimitSpec::new(settings, &hasher));
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
                let name = super::key::name("t", &spec, key);
                fake.keys.borrow_mut().insert(name.clone().into_bytes(), (held, Some(u64::MAX)));
                let held = Held::Text(if random.one_in(4) { bytes(&mut random) } else { all_bytes(&mut random) });
                fake.keys.borrow_mut().insert(super::key::of_penalty(name).into_bytes(), (held, Some(u64::MAX)));
            }
            now += random.up_to(1 << 40);
            let charge = Charge { spec: &spec, key, cost: random.cost(spec.algorithm().capacity()) };
            let asked = [PreparedCharge::new(&charge, &OverrideCache::default())];
            let request = requests::decide("t", Task::Acquire, now, &asked);
            let reply = fake.run(&script::encode_clock(now), &[request]);
            let found = Replies::parse(reply, 1).unwrap().replies.remove(0);
            let decision = found.and_then(|found| outcomes::decision(Task::Acquire, now, &asked, &found));
            assert!(!changes || decision.is_ok(), "{:?} {:?}", spec, decision);
        }
    }
}
