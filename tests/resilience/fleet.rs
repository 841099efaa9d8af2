//! Several processes on one Redis, like the machines of a fleet.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deadpool_redis::redis::{Client, Connection, cmd};
use support::calls::Calls;
use support::limits::{Patient, all};
use support::redis_server::RedisServer;
use tokio::sync::Barrier;
use tower_ratelimit::{Limit, Limiter, RedisConfig};

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const REQUESTS: usize = 4;
const TOKENS: u32 = 500;

/// Longer than any run, so that no tokens come back during it.
const PERIOD: Duration = Duration::from_secs(360 * 86_400);

/// The environment variable with the URL of Redis for a process of the fleet.
const URL: &str = "RATELIMIT_TEST_FLEET";

/// The prefix of its lines of output.
const ALLOWED: &str = "allowed ";

#[test]
fn four_processes_of_64_tasks_are_admitted_exactly_the_limit() {
    wait_for_a_window();
    let server = RedisServer::start();
    let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::start(&server.url())).collect();
    // All processes have connected, and start together.
    processes.iter_mut().for_each(Process::begin);
    let allowed: Vec<Vec<u32>> = processes.into_iter().map(Process::allowed).collect();

    for (index, (name, _)) in all(TOKENS, PERIOD).into_iter().enumerate() {
        let each: Vec<u32> = allowed.iter().map(|process| process[index]).collect();
        println!("{name}: {each:?}");
        assert_eq!(each.iter().sum::<u32>(), TOKENS, "{name}: {each:?}");
    }
    let mut connection = Client::open(server.url()).and_then(|client| client.get_connection()).expect("a connection");
    assert_all_expire(&mut connection);
}

/// One process of the fleet, with 64 tasks on one key, for each algorithm in turn.
#[test]
#[ignore = "the fleet's test starts it"]
fn process_of_the_fleet() {
    let url = std::env::var(URL).expect("the fleet's test says where Redis is");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = RedisConfig::node(url).patient().connect().await.expect("a connection");
        println!("\nready");
        let begin = std::io::stdin().lines().next();
        assert!(begin.is_some(), "the fleet begins");
        for (name, algorithm) in all(TOKENS, PERIOD) {
            let limiter = Limiter::builder(Limit::new(name, algorithm)).patient().store(store.clone()).build();
            println!("\n{ALLOWED}{}", admitted(limiter).await);
        }
    });
}

async fn admitted(limiter: Limiter) -> u32 {
    let barrier = Arc::new(Barrier::new(TASKS));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, barrier) = (limiter.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                let mut allowed = 0;
                for _ in 0..REQUESTS {
                    allowed += u32::from(limiter.allows("key", 1).await);
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.expect("a task");
    }
    allowed
}

/// Windows of 360 days are aligned to the epoch, and years to January. If one ends during a run, the run counts in two
/// windows.
fn wait_for_a_window() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch").as_secs();
    let year = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).last_of_year().expect("a last day");
    let next = year.end_of_day().expect("its end").timestamp().as_second().unsigned_abs() + 1;
    for left in [PERIOD.as_secs() - now % PERIOD.as_secs(), next - now] {
        if left < 300 {
            std::thread::sleep(Duration::from_secs(left));
        }
    }
}

fn assert_all_expire(connection: &mut Connection) {
    let keys: Vec<String> = cmd("KEYS").arg("*").query(connection).expect("keys");
    assert_eq!(keys.len(), 9, "one for each algorithm");
    for key in keys {
        let left: i64 = cmd("PTTL").arg(&key).query(connection).expect("a time to live");
        assert!(left > 0, "{key}: {left}");
    }
}

struct Process {
    process: Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(url: &str) -> Self {
        use std::io::BufRead;
        let mut process = Command::new(std::env::current_exe().expect("a path to this test"))
            .args(["fleet::process_of_the_fleet", "--exact", "--ignored", "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = std::io::BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Self { process, lines }
    }

    fn begin(&mut self) {
        while self.line() != "ready" {}
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"begin\n").expect("it listens");
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the process says how far it is").expect("text")
    }

    /// Returns the number of allowed requests by each algorithm.
    fn allowed(mut self) -> Vec<u32> {
        let lines = self.lines.by_ref().map(|line| line.expect("text"));
        let allowed = lines.filter_map(|line| line.strip_prefix(ALLOWED)?.parse().ok()).collect();
        assert!(self.process.wait().expect("its status").success());
        allowed
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
