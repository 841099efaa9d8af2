//! Denials while Redis refuses to write.

use std::sync::{Arc, Mutex};

use deadpool_redis::redis::{Cmd, cmd};
use support::limits::{Patient, acquire_costs, all};
use support::redis_server::RedisServer;
use tower_ratelimit::{
    DecidedBy, Event, FixedWindow, Limit, Limiter, ManualClock, OnStoreError, Penalty, RedisConfig, RedisStore,
    SlidingLog, Timestamp,
};

use crate::penalties::backend::{DAY, MINUTE, START};

fn words(command: &str) -> Cmd {
    let mut words = command.split(' ');
    let mut command = cmd(words.next().expect("a command"));
    words.for_each(|word| _ = command.arg(word));
    command
}

/// A reason why Redis refuses writes: its code, the command that begins it, and the one that ends it.
const REFUSALS: [[&str; 3]; 5] = [
    ["OOM", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"],
    ["MISCONF", "CONFIG SET stop-writes-on-bgsave-error yes", "CONFIG SET stop-writes-on-bgsave-error no"],
    ["READONLY", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"],
    ["NOREPLICAS", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"],
    ["NOPERM", "ACL SETUSER default -set -setrange -rpush -lset -ltrim", "ACL SETUSER default +@all"],
];

struct Server(RedisServer);

impl Server {
    fn start() -> Self {
        Self(RedisServer::start_unable_to_save())
    }

    fn run(&self, command: &str) {
        let () = self.0.ask(&words(command));
    }

    /// Checks that it refuses writes with this code.
    fn refuses(&self, code: &str) {
        let error = self.0.try_ask::<()>(&words("SET other 1 EX 1")).expect_err(code).to_string();
        assert!(error.to_uppercase().replace("READ-ONLY", "READONLY").contains(code) || code == "NOPERM", "{error}");
    }

    async fn store(&self) -> RedisStore {
        RedisConfig::node(self.0.url()).patient().connect().await.unwrap()
    }
}

/// Returns a limiter that allows requests while the store fails, and the failures of the store.
fn lenient(store: RedisStore, limits: impl IntoIterator<Item = Limit>) -> (Limiter, Arc<Mutex<Vec<String>>>) {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let noted = failures.clone();
    let limiter = Limiter::builder(limits).store(store).patient().on_store_error(OnStoreError::Allow);
    let limiter = limiter.observe(move |event| {
        if let Event::StoreFailed { error, .. } = event {
            noted.lock().unwrap().push(error.to_string());
        }
    });
    (limiter.build(), failures)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_when_redis_refuses_its_strike() {
    let server = Server::start();
    for [code, begin, end] in REFUSALS {
        let store = server.store().await.remember_denials(std::time::Duration::ZERO);
        for (name, algorithm) in all(2, 366 * DAY) {
            let limit = Limit::new(format!("{code} {name}"), algorithm).penalty(Penalty::after(2, DAY));
            let (limiter, failures) = lenient(store.clone(), [limit]);
            assert!(limiter.acquire("key", 2).await.unwrap().is_allowed());
            server.run(begin);
            server.refuses(code);
            for _ in 0..3 {
                let decision = limiter.acquire("key", 2).await.unwrap();
                assert_eq!(decision.decided_by(), DecidedBy::Store, "{code} {name}: {failures:?}");
                assert!(!decision.is_allowed() && !decision.is_locked_out(), "{code} {name}: {decision:?}");
                assert!(!limiter.peek("key", 2).await.unwrap().is_allowed(), "{code} {name}");
            }
            // A new key can't be charged, so the policy decides.
            assert_eq!(limiter.acquire("new", 1).await.unwrap().decided_by(), DecidedBy::Unlimited, "{code} {name}");
            assert_eq!(failures.lock().unwrap().len(), 1, "{code} {name}: {failures:?}");
            server.run(end);
            // The connection to a replica is replaced.
            let mut decision = limiter.acquire("key", 2).await.unwrap();
            while decision.decided_by() != DecidedBy::Store {
                decision = limiter.acquire("key", 2).await.unwrap();
            }
            assert!(!decision.is_locked_out(), "{code} {name}: the first strike that was written");
            assert!(limiter.acquire("key", 2).await.unwrap().is_locked_out(), "{code} {name}: the second one");
        }
    }
}

/// What a denial reads needs no write: a log with expired entries, an override that has expired, and limits that have
/// room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_by_one_of_several_limits_stands_when_redis_refuses_writes() {
    let server = Server::start();
    for [code, begin, end] in REFUSALS {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let limits = [
            Limit::new(format!("{code} large"), FixedWindow::new(100, DAY)),
            Limit::new(format!("{code} sized"), FixedWindow::new(3, DAY)).overridable(),
            Limit::new(format!("{code} log"), SlidingLog::new(3, MINUTE)).penalty(Penalty::after(1, DAY)),
        ];
        let (limiter, failures) = lenient(server.store().await.clock(clock.clone()), limits);
        let sized = limiter.limit(&format!("{code} sized")).unwrap();
        sized.set_override("key", FixedWindow::new(9, DAY), Some(MINUTE)).await.unwrap();
        assert!(acquire_costs(&limiter, "key", &[1, 0, 1]).await.unwrap().is_allowed());
        clock.advance(MINUTE / 2);
        assert!(acquire_costs(&limiter, "key", &[1, 0, 2]).await.unwrap().is_allowed());
        // The first entry has expired, and the override.
        clock.advance(MINUTE * 3 / 4);
        server.run(begin);
        server.refuses(code);
        for (costs, denied) in [([1, 4, 0], 1), ([1, 0, 2], 2)] {
            for is_peek in [false, true] {
                let decision = match is_peek {
                    false => acquire_costs(&limiter, "key", &costs).await.unwrap(),
                    true => limiter.peek("key", costs[denied]).await.unwrap(),
                };
                let verdicts: Vec<_> = decision.outcomes().iter().map(|outcome| outcome.verdict()).collect();
                assert!(!verdicts[denied].is_allowed(), "{code}: {verdicts:?} {failures:?}");
                assert!(!decision.is_locked_out() && decision.decided_by() == DecidedBy::Store, "{code}");
            }
        }
        assert_eq!(limiter.peek("key", 0).await.unwrap().outcomes()[1].remaining(), 3, "{code}");
        assert_eq!(failures.lock().unwrap().as_slice(), [""; 0], "{code}");
        server.run(end);
    }
}
