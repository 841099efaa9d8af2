//! Eight processes on one Redis, which are killed, stopped and cut off, and a server that counts what they admit.
#![allow(clippy::print_stdout, reason = "what the processes have done")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use support::patient::{LONG, Patient, connected};
use support::process::Process;
use support::proxy::{Gate, Proxy};
use support::redis_server::{RedisServer, wait_until};
use support::split_mix::Random;
use support::time::LONGEST;
use tokio::time::sleep;
use tower_ratelimit::{DecidedBy, Limiter, RedisConfig};

use crate::judge::{Kind, Rule};
use crate::servers::wait_for_remaining;
use crate::world::limits;

const PROCESSES: usize = 8;

/// The process whose calls are held back for a while, as by a partition. Replies to those with odd numbers are late.
const CUT_OFF: usize = 0;

const TERM: Duration = Duration::from_millis(200);

/// The tokens of the burst that are given up for leases.
const RESERVE: u64 = 80;

const BUCKET: Rule = Rule { kind: Kind::TokenBucket, tokens: 150, amount: 400, span: 1_000_000 };
const WINDOW: Rule = Rule { kind: Kind::FixedWindow, tokens: 300, amount: 0, span: 1_000_000 };

/// A window that does not end during the test.
const LONG_WINDOW: Rule =
    Rule { kind: Kind::FixedWindow, tokens: 100_000, amount: 0, span: LONGEST.as_micros() as u64 };

/// The limits of the requests. Each has two keys: one with steady load, and one with a pulse in each second.
const LIMITS: [&[Rule]; 3] = [&[BUCKET], &[WINDOW], &[BUCKET, WINDOW]];
const KEYS: usize = 2 * LIMITS.len();

/// The key of requests at the end, when nothing fails any more, under the long window.
const CALM: usize = KEYS;

/// The calm requests of each process.
const CALM_REQUESTS: usize = 100;

/// The environment variables of a process of the fleet: the URL of Redis, the address of the server that counts, and
/// the number of the process, with a seed.
const URL: &str = "RATELIMIT_TEST_LEASES_REDIS";
const SERVER: &str = "RATELIMIT_TEST_LEASES_SERVER";
const NUMBER: &str = "RATELIMIT_TEST_LEASES_NUMBER";

/// If this environment variable is set, the fleet runs for ten minutes instead of eight seconds.
const LONG_RUN: &str = "RATELIMIT_TEST_LEASES_LONG";

/// Instants are compared by the clock of Redis.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// Waits for a time of each second, in µs.
async fn wait_for_phase(phase: u64) {
    let second = BUCKET.span;
    sleep(Duration::from_micros((phase + second - now() % second) % second)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_never_exceed_their_limits_and_return_what_they_do_not_spend() {
    let (seeds, span) = match std::env::var_os(LONG_RUN) {
        Some(_) => (20, Duration::from_secs(30)),
        None => (1, Duration::from_secs(8)),
    };
    for seed in 1..=seeds {
        run(seed, span).await;
    }
}

async fn run(seed: u64, span: Duration) {
    let redis = RedisServer::start();
    let (gate, proxy) = (Gate::to(redis.port()).await, Proxy::to(redis.port()).await);
    let (server, mut random) = (CountingServer::start(), Random(seed));
    let start = |number: usize, seed: u64| {
        let url = match number {
            CUT_OFF => gate.url(),
            _ if number % 2 == 1 => proxy.url(),
            _ => redis.url(),
        };
        let variables = [(URL, url), (SERVER, server.address.clone()), (NUMBER, format!("{number} {seed}"))];
        Process::start("fleet::process_of_the_fleet", &variables)
    };
    let mut fleet: Vec<Process> = (0..PROCESSES).map(|number| start(number, random.next())).collect();
    wait_until("the fleet starts", || server.state().connections.iter().all(Option::is_some));

    let (began, clock) = (Instant::now(), SystemTime::now());
    let (mut kills, mut short, mut long, mut partitions) = (0, 0, 0, 0);
    while began.elapsed() < span {
        sleep(Duration::from_millis(50 + random.below(150))).await;
        let number = random.below(PROCESSES as u64) as usize;
        let part_of_term = TERM.mul_f64(random.below(100) as f64 / 100.0);
        match random.below(5) {
            0 => {
                server.state().connections[number] = None;
                fleet[number] = start(number, random.next());
                kills += 1;
            }
            1 | 2 => {
                let is_long = random.below(2) == 0;
                fleet[number].signal("-STOP");
                sleep(if is_long { TERM + part_of_term } else { part_of_term }).await;
                fleet[number].signal("-CONT");
                *if is_long { &mut long } else { &mut short } += 1;
            }
            3 => {
                gate.set_open(false);
                sleep(2 * part_of_term).await;
                gate.set_open(true);
                partitions += 1;
            }
            _ => proxy.set_latency(random.below(120)),
        }
    }
    proxy.set_latency(0);
    wait_until("the fleet is complete", || server.state().connections.iter().all(Option::is_some));
    server.state().connections.iter().flatten().for_each(|mut process| process.write_all(&[0]).expect("it reads"));
    wait_until("all requests are decided", || server.state().calm == PROCESSES);
    let step = clock.elapsed().unwrap_or_default().abs_diff(began.elapsed());

    println!(
        "seed {seed}: {kills} kills, {short} short and {long} long stops, {partitions} partitions; {}",
        server.summary()
    );
    // Redis decides by it.
    if step > Duration::from_millis(100) {
        println!("the clock was stepped by {step:?}");
        return;
    }
    server.check();
    let calm = server.state().admitted[CALM].len() as u64;
    let store = connected(RedisConfig::node(redis.url()).patient()).await;
    let limiter = |rules| Limiter::builder(limits(rules, TERM)).patient().store(store.clone()).build();
    // Every token that no request has spent was returned.
    wait_for_remaining(&limiter(&[LONG_WINDOW]), CALM as u64, &[LONG_WINDOW.tokens - calm]).await;
    for key in 0..KEYS {
        let whole = |rule: &Rule| if rule.is_bucket() { rule.tokens - RESERVE } else { rule.tokens };
        let rules = LIMITS[key / 2];
        wait_for_remaining(&limiter(rules), key as u64, &rules.iter().map(whole).collect::<Vec<_>>()).await;
    }
}

/// A report has the key of an admitted request, an instant before its decision, one after it, whether a lease has
/// decided it, and the number of requests since the last report.
const REPORT: usize = 5;

/// Instead of a key: the process has sent its calm requests.
const END: u64 = u64::MAX;

/// The connection of a process to the server that counts.
struct Reports {
    connection: Mutex<TcpStream>,
    /// The requests since the last report.
    requests: AtomicU64,
}

impl Reports {
    fn send(&self, key: u64, [first, last]: [u64; 2], by_lease: bool) {
        let report: [u64; REPORT] = [key, first, last, by_lease.into(), self.requests.swap(0, Ordering::Relaxed)];
        self.connection.lock().unwrap().write_all(&report.map(u64::to_le_bytes).concat()).expect("the server reads");
    }

    /// Returns whether a request is allowed, after a report of it.
    async fn request(&self, limiter: &Limiter, key: u64) -> bool {
        let first = now();
        let decision = limiter.acquire(key, 1).await;
        // The µs has begun.
        let last = now() + 1;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let by = decision.ok().filter(|decision| decision.is_allowed()).map(|decision| decision.decided_by());
        if let Some(by) = by {
            assert!(matches!(by, DecidedBy::Lease | DecidedBy::Store), "{by:?}");
            self.send(key, [first, last], by == DecidedBy::Lease);
        }
        by.is_some()
    }

    /// Sends two hundred requests per second.
    async fn steadily(&self, limiter: &Limiter, key: u64, random: &mut Random) {
        sleep(Duration::from_micros(random.below(8_000))).await;
        self.request(limiter, key).await;
    }

    /// Takes blocks of a limit that is hardly used, shortly before the window and the leases end. Then sends as many
    /// requests as are allowed.
    async fn in_pulses(&self, limiter: &Limiter, key: u64, random: &mut Random) {
        wait_for_phase(BUCKET.span - TERM.as_micros() as u64 * 9 / 10).await;
        for _ in 0..random.one_of(&[0, 2, 4, 8]) {
            self.request(limiter, key).await;
        }
        wait_for_phase(0).await;
        while now() % BUCKET.span < BUCKET.span * 3 / 10 {
            if !self.request(limiter, key).await {
                sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the fleet's test starts it"]
async fn process_of_the_fleet() {
    let variable = |name| std::env::var(name).expect("the fleet's test sets it");
    let numbers = variable(NUMBER);
    let (number, seed) = numbers.split_once(' ').expect("two numbers");
    let (number, seed): (usize, u64) = (number.parse().expect("a number"), seed.parse().expect("a number"));
    let mut connection = TcpStream::connect(variable(SERVER)).expect("the server listens");
    connection.write_all(&[number as u8]).expect("it reads");
    let reports = Reports { connection: Mutex::new(connection.try_clone().expect("a handle")), requests: 0.into() };
    let (reports, is_calm) = (Arc::new(reports), Arc::<AtomicBool>::default());
    let calm = is_calm.clone();
    thread::spawn(move || {
        while connection.read_exact(&mut [0]).is_ok() {
            calm.store(true, Ordering::Relaxed);
        }
        // The fleet's test has ended.
        std::process::exit(0);
    });
    let store = connected(RedisConfig::node(variable(URL)).patient()).await;
    let limiter = |rules| {
        let builder = Limiter::builder(limits(rules, TERM)).store(store.clone());
        if number == CUT_OFF { builder.deadline(TERM / 2) } else { builder.patient() }.build()
    };
    let mut tasks = Vec::new();
    for key in 0..KEYS {
        let (limiter, mut random) = (limiter(LIMITS[key / 2]), Random(seed ^ (key as u64) << 32));
        let (reports, is_calm) = (reports.clone(), is_calm.clone());
        tasks.push(tokio::spawn(async move {
            while !is_calm.load(Ordering::Relaxed) {
                match key % 2 {
                    0 => reports.steadily(&limiter, key as u64, &mut random).await,
                    _ => reports.in_pulses(&limiter, key as u64, &mut random).await,
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("a task");
    }
    // One whose deadline is short may lose tokens.
    if number != CUT_OFF {
        let limiter = limiter(&[LONG_WINDOW]);
        for _ in 0..CALM_REQUESTS {
            assert!(reports.request(&limiter, CALM as u64).await);
            sleep(Duration::from_millis(2)).await;
        }
    }
    reports.send(END, [0, 0], false);
    sleep(2 * LONG).await;
}

/// Counts the admitted requests of all processes.
struct CountingServer {
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connections: [Option<TcpStream>; PROCESSES],
    /// By key.
    admitted: [Vec<(u64, u64)>; KEYS + 1],
    requests: u64,
    by_lease: u64,
    /// The processes that have sent their calm requests.
    calm: usize,
}

impl CountingServer {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, state) = (connection.expect("a connection"), shared.clone());
                thread::spawn(move || serve(connection, &state));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn summary(&self) -> String {
        let State { admitted, requests, by_lease, .. } = &*self.state();
        let admitted = admitted.each_ref().map(Vec::len);
        let all: usize = admitted.iter().sum();
        format!("{requests} requests, {all} admitted, {by_lease} of them by leases, by key: {admitted:?}")
    }

    /// Checks that no key has exceeded its limits, and that the load is enough for that.
    fn check(&self) {
        let state = self.state();
        let over = |key: usize| LIMITS[key / 2].iter().map(|rule| rule.sure_excess(&state.admitted[key])).collect();
        let over: Vec<Vec<u64>> = (0..KEYS).map(over).collect();
        assert!(over.iter().flatten().all(|tokens| *tokens == 0), "tokens over the limits of each key: {over:?}");
        assert!(state.admitted[..KEYS].iter().all(|admitted| admitted.len() as u64 > WINDOW.tokens));
        assert_eq!(state.admitted[CALM].len(), (PROCESSES - 1) * CALM_REQUESTS);
        assert!(state.by_lease > 0);
    }
}

fn serve(mut connection: TcpStream, state: &Mutex<State>) {
    let mut number = [0];
    // Other programs of the machine may connect to the port.
    if connection.read_exact(&mut number).is_err() || usize::from(number[0]) >= PROCESSES {
        return;
    }
    state.lock().unwrap().connections[usize::from(number[0])] = Some(connection.try_clone().expect("a handle"));
    let mut bytes = [0; 8 * REPORT];
    while connection.read_exact(&mut bytes).is_ok() {
        let number = |at| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("8 bytes"));
        let [key, first, last, by_lease, requests]: [u64; REPORT] = std::array::from_fn(number);
        let mut state = state.lock().unwrap();
        state.requests += requests;
        state.by_lease += by_lease;
        match key {
            END => state.calm += 1,
            key => state.admitted[key as usize].push((first, last)),
        }
    }
}
