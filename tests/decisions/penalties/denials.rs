//! Denials while Redis denies writes.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, cmd};
use support::calls::{Calls, Outcomes};
use support::event_log::EventLog;
use support::limits::{Patient, acquire_costs, all};
use support::redis_server::RedisServer;
use support::store_fixture::{connect, midnight};
use support::time::{DAY, LONGEST, MINUTE};
use tower_ratelimit::{DecidedBy, FixedWindow, Limit, Limiter, OnStoreError, Penalty, RedisStore, SlidingLog};

fn words(command: &str) -> Cmd {
    let mut words = command.split(' ');
    let mut command = cmd(words.next().expect("a command"));
    words.for_each(|word| _ = command.arg(word));
    command
}

/// A reason why Redis denies writes: its code, the command that begins it, and the one that ends it.
const REASONS: [[&str; 3]; 5] = [
    ["OOM", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"],
    ["MISCONF", "CONFIG SET stop-writes-on-bgsave-error yes", "CONFIG SET stop-writes-on-bgsave-error no"],
    ["READONLY", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"],
    ["NOREPLICAS", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"],
    ["NOPERM", "ACL SETUSER default -set -setrange -rpush -lset -ltrim", "ACL SETUSER default +@all"],
];

/// Runs a command, after which the server denies writes with this code.
fn deny_writes(server: &RedisServer, code: &str, command: &str) {
    let () = server.ask(&words(command));
    let error = server.try_ask::<()>(&words("SET other 1 EX 1")).expect_err(code).to_string();
    assert!(error.to_uppercase().replace("READ-ONLY", "READONLY").contains(code) || code == "NOPERM", "{error}");
}

/// Returns a limiter that allows requests while the store fails, and the failures of the store.
fn lenient(store: RedisStore, limits: impl IntoIterator<Item = Limit>) -> (Limiter, EventLog) {
    let failures = EventLog::default();
    let limiter = Limiter::builder(limits).store(store).patient().on_store_error(OnStoreError::Allow);
    (limiter.observe(failures.observer()).build(), failures)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_when_redis_denies_its_strike() {
    let server = RedisServer::start_unable_to_save();
    for [code, begin, end] in REASONS {
        let store = connect(&server).await.remember_denials(Duration::ZERO);
        for (name, algorithm) in all(2, LONGEST) {
            let limit = Limit::new(format!("{code} {name}"), algorithm).penalty(Penalty::after(2, DAY));
            let (limiter, failures) = lenient(store.clone(), limit);
            assert!(limiter.allows("key", 2).await);
            deny_writes(&server, code, begin);
            for _ in 0..3 {
                let decision = limiter.acquire("key", 2).await.unwrap();
                assert_eq!(decision.decided_by(), DecidedBy::Store, "{code} {name}: {failures:?}");
                assert!(!decision.is_allowed() && !decision.is_locked_out(), "{code} {name}: {decision:?}");
                assert!(!limiter.peek("key", 2).await.unwrap().is_allowed(), "{code} {name}");
            }
            // A new key can't be charged, so the policy decides.
            assert_eq!(limiter.acquire("new", 1).await.unwrap().decided_by(), DecidedBy::Unlimited, "{code} {name}");
            assert_eq!(failures.take().len(), 1, "{code} {name}");
            let () = server.ask(&words(end));
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
/// capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_by_one_of_several_limits_stands_when_redis_denies_writes() {
    let server = RedisServer::start_unable_to_save();
    for [code, begin, end] in REASONS {
        let clock = midnight();
        let limits = [
            Limit::new(format!("{code} large"), FixedWindow::new(100, DAY)),
            Limit::new(format!("{code} sized"), FixedWindow::new(3, DAY)).overridable(),
            Limit::new(format!("{code} log"), SlidingLog::new(3, MINUTE)).penalty(Penalty::after(1, DAY)),
        ];
        let (limiter, failures) = lenient(connect(&server).await.clock(clock.clone()), limits);
        let sized = limiter.limit(&format!("{code} sized")).unwrap();
        sized.set_override("key", FixedWindow::new(9, DAY), Some(MINUTE)).await.unwrap();
        assert!(acquire_costs(&limiter, "key", &[1, 0, 1]).await.unwrap().is_allowed());
        clock.advance(MINUTE / 2);
        assert!(acquire_costs(&limiter, "key", &[1, 0, 2]).await.unwrap().is_allowed());
        // The first entry has expired, and the override.
        clock.advance(MINUTE * 3 / 4);
        deny_writes(&server, code, begin);
        for (costs, denied) in [([1, 4, 0], 1), ([1, 0, 2], 2)] {
            let acquired = acquire_costs(&limiter, "key", &costs).await.unwrap();
            let peeked = limiter.peek("key", costs[denied]).await.unwrap();
            for decision in [acquired, peeked] {
                assert!(!decision.verdicts()[denied], "{code}: {decision:?} {failures:?}");
                assert!(!decision.is_locked_out() && decision.decided_by() == DecidedBy::Store, "{code}");
            }
        }
        assert_eq!(limiter.left("key").await[1], 3, "{code}");
        assert_eq!(failures.take(), [""; 0], "{code}");
        let () = server.ask(&words(end));
    }
}
