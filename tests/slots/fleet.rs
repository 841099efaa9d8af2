//! Eight processes on one Redis, which are killed and stopped, and a server that counts what they have in flight.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use support::patient::{Patient, connected};
use support::process::Process;
use support::redis_server::RedisServer;
use support::split_mix::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tower_ratelimit::{Concurrency, Event, Limit, Limiter, RedisConfig, SlotGuard};

const PROCESSES: usize = 8;
const TASKS: u64 = 64;
const SLOTS: u32 = 24;

/// The shortest time to live.
const TIME_TO_LIVE: Duration = Duration::from_secs(1);

/// The latest time after which the slots of a process that was killed are free, with some more for the machine.
const ALL_FREE: Duration = Duration::from_millis(1_125 + 500);

/// A stop for three eighths of the time to live changes nothing. Somewhat shorter, for the time that signals take.
const SHORT_STOP: u64 = 325;

/// A machine that stops a process for longer, beside the stops of the test, is as good as a stop.
const STALL: Duration = Duration::from_millis(100);

/// The environment variables of a process of the fleet: the URL of Redis, the address of the server that counts, and the
/// number of the process.
const URL: &str = "RATELIMIT_TEST_SLOTS_REDIS";
const SERVER: &str = "RATELIMIT_TEST_SLOTS_SERVER";
const NUMBER: &str = "RATELIMIT_TEST_SLOTS_NUMBER";

/// If this environment variable is set, the fleet runs for ten minutes instead of ten seconds.
const LONG: &str = "RATELIMIT_TEST_SLOTS_LONG";

/// What a process reports.
const BEGUN: u8 = b'+';
const ENDS: u8 = b'-';
const EXPIRED: u8 = b'x';
const STALLED: u8 = b's';

#[test]
fn eight_processes_never_have_more_in_flight_than_the_limit() {
    let (seeds, span) = match std::env::var_os(LONG) {
        Some(_) => (10, Duration::from_secs(60)),
        None => (1, Duration::from_secs(8)),
    };
    (1..=seeds).for_each(|seed| run(seed, span));
}

fn run(seed: u64, span: Duration) {
    let redis = RedisServer::start();
    let server = CountingServer::start();
    let mut random = Random(seed);
    let mut fleet: Vec<Process> = (0..PROCESSES).map(|number| start(&redis, &server, number, random.next())).collect();
    let began = Instant::now();
    while server.state().begun < u64::from(SLOTS) {
        assert!(began.elapsed() < Duration::from_secs(60), "the fleet starts");
        thread::sleep(Duration::from_millis(10));
    }

    let (began, clock) = (Instant::now(), SystemTime::now());
    let (mut kills, mut short, mut long) = (0, 0, 0);
    while began.elapsed() < span {
        thread::sleep(Duration::from_millis(100 + random.below(300)));
        let number = random.below(PROCESSES as u64) as usize;
        if server.state().stopped.is_some_and(|stopped| stopped.process == number) {
            continue;
        }
        match random.below(4) {
            0 => {
                server.state().killed[number] = Some(Instant::now());
                fleet[number] = start(&redis, &server, number, random.next());
                kills += 1;
            }
            1 if server.state().stopped.is_none() => {
                // Longer than slots live.
                server.stop(number);
                fleet[number].signal("-STOP");
                thread::sleep(TIME_TO_LIVE + Duration::from_millis(random.below(1_000)));
                fleet[number].signal("-CONT");
                server.resume();
                long += 1;
            }
            _ => {
                server.state().signaled[number] = Some(Instant::now());
                fleet[number].signal("-STOP");
                thread::sleep(Duration::from_millis(random.below(SHORT_STOP)));
                fleet[number].signal("-CONT");
                short += 1;
            }
        }
    }
    drop(fleet);
    // Redis decides by it.
    let (passed, real) = (clock.elapsed().unwrap_or_default(), began.elapsed());
    let step = passed.abs_diff(real);
    let free_after = all_slots_are_free_after(&redis);
    println!(
        "seed {seed}: {kills} kills, {short} short and {long} long stops; {}; all free after {free_after:?}",
        server.summary()
    );
    if step > STALL {
        println!("the clock was stepped by {step:?}, which expires slots");
        return;
    }
    server.check();
    assert!(free_after < ALL_FREE, "{free_after:?}");
}

fn streams() -> Limit {
    Limit::new("streams", Concurrency::limit(SLOTS).time_to_live(TIME_TO_LIVE))
}

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("a runtime")
}

/// Returns the time until the slots of processes that were all killed are free.
fn all_slots_are_free_after(redis: &RedisServer) -> Duration {
    let began = Instant::now();
    runtime(1).block_on(async {
        let store = connected(RedisConfig::node(redis.url()).patient()).await;
        let limiter = Limiter::builder([streams()]).patient().store(store).build();
        loop {
            let answer = limiter.peek("key", 1).await.expect("an answer");
            if answer.outcomes()[0].remaining() == u64::from(SLOTS) {
                return began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{answer:?}");
            sleep(Duration::from_millis(5)).await;
        }
    })
}

/// One process of the fleet, with 64 tasks on one key.
#[test]
#[ignore = "the fleet's test starts it"]
fn process_of_the_fleet() {
    let variable = |name| std::env::var(name).expect("the fleet's test sets it");
    let server: SocketAddr = variable(SERVER).parse().expect("an address");
    let number: u8 = variable(NUMBER).split(' ').next().expect("a number").parse().expect("a number");
    let seed: u64 = variable(NUMBER).split(' ').nth(1).expect("a seed").parse().expect("a seed");
    let mut reports = TcpStream::connect(server).expect("the server listens");
    reports.write_all(&[number]).expect("it reads");
    let report = Arc::new(Mutex::new(reports.try_clone().expect("a handle")));
    thread::spawn(move || {
        let _ = reports.read(&mut [0]);
        // The fleet's test has ended.
        std::process::exit(0);
    });
    let stalls = report.clone();
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            thread::sleep(Duration::from_millis(10));
            let stalled = (began.elapsed().as_millis() / STALL.as_millis()) as usize;
            stalls.lock().unwrap().write_all(&vec![STALLED; stalled]).expect("it reads");
        }
    });
    runtime(2).block_on(async {
        let store = connected(RedisConfig::node(variable(URL)).patient()).await;
        let observe = move |event: &Event<'_>| {
            if let Event::SlotsExpired { slots, .. } = event {
                report.lock().unwrap().write_all(&vec![EXPIRED; *slots as usize]).expect("it reads");
            }
        };
        let limiter = Limiter::builder([streams()]).patient().store(store).observe(observe).build();
        let tasks = (0..TASKS).map(|task| {
            let (limiter, random) = (limiter.clone(), Random(seed ^ task << 32));
            tokio::spawn(work(limiter, random, server, number))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a task");
        }
    });
}

/// Takes slots for random times, until the process ends.
async fn work(limiter: Limiter, mut random: Random, server: SocketAddr, number: u8) {
    let mut server = tokio::net::TcpStream::connect(server).await.expect("the server listens");
    server.set_nodelay(true).expect("a socket");
    server.write_u8(number).await.expect("it reads");
    loop {
        let Some(held) = take(&limiter, &mut random).await else {
            sleep(Duration::from_millis(random.below(100))).await;
            continue;
        };
        server.write_u8(BEGUN).await.expect("it reads");
        let longest = random.one_of(&[20, 200, 1_000, 3_000]);
        sleep(Duration::from_millis(random.below(longest))).await;
        // It must be counted before others can take the slot.
        server.write_u8(ENDS).await.expect("it reads");
        server.read_u8().await.expect("it answers");
        drop(held);
    }
}

async fn take(limiter: &Limiter, random: &mut Random) -> Option<SlotGuard> {
    match random.below(4) {
        0 => timeout(Duration::from_micros(random.below(3_000)), limiter.hold("key", 1)).await.ok()?.ok(),
        1 => limiter.hold("key", 1).await.ok(),
        2 => {
            let longest = Duration::from_millis(random.below(50));
            timeout(longest, limiter.hold_at_most("key", 1, TIME_TO_LIVE)).await.ok()?.ok()
        }
        _ => limiter.hold_at_most("key", 1, Duration::from_millis(random.below(1_000))).await.ok(),
    }
}

fn start(redis: &RedisServer, server: &CountingServer, number: usize, seed: u64) -> Process {
    let (url, address) = (redis.url(), server.address.to_string());
    let variables = [(URL, url), (SERVER, address), (NUMBER, format!("{number} {seed}"))];
    Process::start("fleet::process_of_the_fleet", &variables)
}

/// Counts the requests in flight. Those of a process that was killed end with its connections.
struct CountingServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    in_flight: [u32; PROCESSES],
    most: u32,
    begun: u64,
    /// The process that was stopped for longer than its slots live, until all are within the limit again.
    stopped: Option<Stopped>,
    /// The most in flight meanwhile.
    most_stopped: u32,
    /// When each process was last continued.
    signaled: [Option<Instant>; PROCESSES],
    /// When each process was last killed.
    killed: [Option<Instant>; PROCESSES],
    /// Slots that have expired in use, other than those of the stopped process.
    expired: Vec<Instant>,
    /// When the machine has stopped a process, for a tenth of a second each.
    stalls: Vec<Instant>,
    violations: Vec<(Instant, String)>,
}

#[derive(Clone, Copy)]
struct Stopped {
    process: usize,
    resumed: Option<Instant>,
}

impl State {
    fn total(&self) -> u32 {
        self.in_flight.iter().sum()
    }

    fn begin(&mut self, process: usize) {
        let before = self.total();
        self.in_flight[process] += 1;
        self.begun += 1;
        let total = before + 1;
        let Some(stopped) = self.stopped else {
            self.most = self.most.max(total);
            if total > SLOTS {
                self.violate(process);
            }
            return;
        };
        self.most_stopped = self.most_stopped.max(total);
        let others = total - self.in_flight[stopped.process];
        // Since then, it has charged its slots again.
        let is_back = stopped.resumed.is_some_and(|resumed| resumed.elapsed() > TIME_TO_LIVE / 2);
        if others > SLOTS || total > 2 * SLOTS || is_back && total > SLOTS {
            self.violate(process);
        }
    }

    fn violate(&mut self, process: usize) {
        let since = |at: Option<Instant>| at.map(|at| at.elapsed());
        let (killed, signaled) = (self.killed.map(since), self.signaled.map(since));
        let stopped = self.stopped.map(|stopped| (stopped.process, since(stopped.resumed)));
        let violation = format!(
            "{:?} in flight, the last one of {process}; killed before {killed:?}; stopped before {signaled:?}, or for \
             long: {stopped:?}",
            self.in_flight
        );
        self.violations.push((Instant::now(), violation));
    }

    fn end(&mut self, process: usize) {
        self.in_flight[process] -= 1;
        let is_back = |stopped: &Stopped| stopped.resumed.is_some_and(|resumed| resumed.elapsed() > TIME_TO_LIVE / 2);
        if self.stopped.as_ref().is_some_and(is_back) && self.total() <= SLOTS {
            self.stopped = None;
        }
    }

    fn report(&mut self, process: usize, report: u8) {
        let now = Instant::now();
        let was_signaled = self.signaled[process].is_some_and(|signaled| signaled.elapsed() < TIME_TO_LIVE);
        let was_stopped = self.stopped.is_some_and(|stopped| stopped.process == process);
        match report {
            EXPIRED if !was_stopped => self.expired.push(now),
            STALLED if !was_stopped && !was_signaled => self.stalls.push(now),
            _ => {}
        }
    }
}

impl CountingServer {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
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

    fn stop(&self, process: usize) {
        self.state().stopped = Some(Stopped { process, resumed: None });
    }

    fn resume(&self) {
        let mut state = self.state();
        let stopped = state.stopped.as_mut().expect("a stopped process");
        stopped.resumed = Some(Instant::now());
    }

    fn summary(&self) -> String {
        let State { most, begun, most_stopped, expired, stalls, .. } = &*self.state();
        let (expired, stalls) = (expired.len(), stalls.len());
        format!(
            "{begun} requests, at most {most} of {SLOTS} in flight, {most_stopped} while a process was stopped for \
             long; {expired} slots expired otherwise, and the machine stalled {stalls} times"
        )
    }

    /// Checks that nothing went wrong, except where the machine stopped a process.
    fn check(&self) {
        let state = self.state();
        assert!(state.most > SLOTS / 2, "the fleet uses its slots: {}", state.most);
        let around = |events: &[Instant], at: Instant| {
            let distance = |event: Instant| event.max(at) - event.min(at);
            events.iter().filter(|event| distance(**event) < 3 * TIME_TO_LIVE).count()
        };
        for (at, violation) in &state.violations {
            println!("{violation}");
            let (expired, stalls) = (around(&state.expired, *at), around(&state.stalls, *at));
            assert!(expired > 0 && stalls > 0, "{violation}, {expired} slots expired, {stalls} stalls");
        }
        for at in &state.expired {
            assert!(around(&state.stalls, *at) > 0, "a slot expired, although nothing stalled");
        }
    }
}

fn serve(mut connection: TcpStream, state: &Mutex<State>) {
    connection.set_nodelay(true).expect("a socket");
    let mut byte = [0];
    // Other programs of the machine may connect to the port.
    if connection.read_exact(&mut byte).is_err() || usize::from(byte[0]) >= PROCESSES {
        return;
    }
    let (process, mut is_in_flight) = (usize::from(byte[0]), false);
    while connection.read_exact(&mut byte).is_ok() {
        let mut state = state.lock().unwrap();
        match byte[0] {
            BEGUN => {
                is_in_flight = true;
                state.begin(process);
            }
            ENDS => {
                is_in_flight = false;
                state.end(process);
                drop(state);
                if connection.write_all(&byte).is_err() {
                    return;
                }
            }
            report => state.report(process, report),
        }
    }
    if is_in_flight {
        state.lock().unwrap().end(process);
    }
}
