//! Masters that are found by Sentinels.

use std::time::{Duration, Instant};

use deadpool_redis::redis::cmd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower_ratelimit::RedisConfig;

use crate::connections::{charge, charged, limiter, resume};
use support::patient::{LONG, Patient, connected};
use support::permissions::{documented, documented_for, each_missing, rejected as rejected_by, set_user};
use support::redis_server::RedisServer;
use support::sentinel::{MASTER, NEVER, SOON, Sentinels};

/// Returns whether a server reports this role. A server whose role changes closes its connections.
fn is(server: &RedisServer, role: &str) -> bool {
    let info = server.try_ask::<String>(cmd("INFO").arg("replication"));
    info.is_ok_and(|info| info.contains(&format!("role:{role}")))
}

/// The error of a failed connection contains the cause as soon as a Sentinel has replied in time.
async fn rejected(config: &RedisConfig, why: &str) {
    let begun = Instant::now();
    loop {
        let text = format!("{:?}", config.clone().connect().await.expect_err("it is rejected"));
        if text.contains(why) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
    }
}

#[tokio::test]
async fn a_killed_master_is_replaced_by_the_replica() {
    let mut master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let sentinels = Sentinels::watch(3, &master, 1);
    let limiter = limiter(connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await).build();
    for n in 1..=10 {
        assert_eq!(charge(&limiter).await, n);
    }
    is_in_sync(&replica, &master).await;
    master.stop();
    sentinels.set_down_after(SOON);
    println!("failed over: {:?}", resume(&limiter).await);
    sentinels.wait_for_master(&replica);
    let before = charged(&limiter).await;
    assert!(before > 10, "what was charged before still counts, on a server that never had the script: {before}");
    // The old master returns as a replica, and is not used.
    sentinels.set_down_after(NEVER);
    master.start_again();
    crate::connections::until("it is demoted", || is(&master, "slave")).await;
    assert_eq!(charge(&limiter).await, before + 1);
}

/// Waits until a replica is in sync with its master. (`WAIT` would only wait for the writes of its own connection.)
async fn is_in_sync(replica: &RedisServer, master: &RedisServer) {
    let held = |server: &RedisServer| {
        let keys: Vec<String> = server.ask(cmd("KEYS").arg("*"));
        keys.iter().map(|key| server.ask(cmd("DUMP").arg(key))).collect::<Vec<Vec<u8>>>()
    };
    crate::connections::until("the replica has it all", || !held(master).is_empty() && held(replica) == held(master))
        .await;
}

/// A demoted master keeps connections open.
#[tokio::test]
async fn a_demoted_master_is_no_longer_used() {
    let master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let sentinels = Sentinels::watch(1, &master, 1);
    let limiter = limiter(connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await).build();
    assert_eq!(charge(&limiter).await, 1);
    is_in_sync(&replica, &master).await;
    let () = master.ask(cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    // A replica reports its role, unless Sentinel has cut its connections first.
    limiter.acquire("key", 1).await.expect_err("a replica");
    sentinels.fail_over(&replica);
    println!("demoted, failed over: {:?}", resume(&limiter).await);
    let charged = charged(&limiter).await;
    assert!(charged > 1, "what was charged before still counts: {charged}");
}

/// A failover by command, without a failure.
#[tokio::test]
async fn a_planned_failover_is_followed() {
    let master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let sentinels = Sentinels::watch(1, &master, 1);
    let limiter = limiter(connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await).build();
    assert_eq!(charge(&limiter).await, 1);
    sentinels.fail_over(&replica);
    crate::connections::until("the roles are exchanged", || is(&replica, "master") && is(&master, "slave")).await;
    println!("failed over on order: {:?}", resume(&limiter).await);
    for n in charged(&limiter).await..10 {
        assert_eq!(charge(&limiter).await, n + 1);
    }
}

#[tokio::test]
async fn other_sentinels_are_asked_if_one_hangs_or_is_gone() {
    let mut master = RedisServer::start();
    let mut sentinels = Sentinels::watch(3, &master, 0);
    let urls = sentinels.urls();
    sentinels.servers[0].pause();
    sentinels.servers[1].stop();
    let limiter = limiter(RedisConfig::sentinel(MASTER, urls).connect_lazily().expect("a store")).build();
    println!("connected behind half-dead Sentinels: {:?}", resume(&limiter).await);
    master.restart();
    println!("restarted behind half-dead Sentinels: {:?}", resume(&limiter).await);
}

/// Its reply would say more than that another Sentinel can't be reached, whichever is known first.
#[tokio::test]
async fn a_sentinel_without_the_master_is_the_error_if_others_hang_or_are_gone() {
    let master = RedisServer::start();
    let mut sentinels = Sentinels::watch(3, &master, 0);
    let urls = sentinels.urls();
    sentinels.servers[0].pause();
    sentinels.servers[1].stop();
    let config = RedisConfig::sentinel("unknown", urls).connect_timeout(Duration::from_millis(500));
    rejected(&config, "knows no available master of this name").await;
}

/// A Sentinel that replies to a login, and hangs then.
#[tokio::test]
async fn connecting_takes_no_longer_than_its_timeout_if_a_sentinel_hangs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = client.read_buf(&mut Vec::new()).await;
            let _ = client.write_all(b"+OK\r\n").await;
            held.push(client);
        }
    });
    let config = RedisConfig::sentinel(MASTER, [url]).patient().connect_timeout(Duration::from_millis(100));
    let begun = Instant::now();
    let error = format!("{:?}", config.connect().await.expect_err("a timeout"));
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert!(error.contains("can't be reached"), "{error}");
}

/// Otherwise, each process would keep as many connections to each Sentinel as to its master.
#[tokio::test]
async fn no_connection_to_a_sentinel_stays_open() {
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let limiter = limiter(connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await).build();
    assert_eq!(charge(&limiter).await, 1);
    crate::connections::until("no other client is connected to the Sentinel", || {
        let clients: String = sentinels.servers[0].ask(cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal"));
        clients.lines().all(|client| client.contains("cmd=client"))
    })
    .await;
}

#[tokio::test]
async fn masters_and_sentinels_have_credentials_of_their_own() {
    let open = RedisServer::start();
    let guarded = RedisServer::start_with(&["--requirepass", "masters"]);
    let sentinels = Sentinels::watch(1, &open, 0);
    let sentinel = &sentinels.servers[0];
    let port = guarded.port().to_string();
    let () = sentinel.ask(cmd("SENTINEL").arg(&["MONITOR", "guarded", "127.0.0.1", &port, "1"]));
    let () = sentinel.ask(cmd("SENTINEL").arg(&["SET", "guarded", "auth-pass", "masters"]));

    let config = RedisConfig::sentinel("guarded", sentinels.urls()).patient();
    rejected(&config, "rejected the user or the password").await;
    let config = config.credentials("default", "masters");
    // Sentinel needs some time to log in.
    assert_eq!(charge(&limiter(connected(config.clone()).await).build()).await, 1);

    let _: () = sentinels.servers[0].ask(cmd("ACL").arg(&[
        "SETUSER",
        "asker",
        "on",
        ">asks",
        "-@all",
        "+sentinel|get-master-addr-by-name",
    ]));
    let _: () = sentinels.servers[0].ask(cmd("ACL").arg(&["SETUSER", "default", "resetpass", ">sentinels"]));
    rejected(&config, "rejected the user or the password").await;
    connected(config.clone().sentinel_credentials("asker", "asks")).await;
    let renewed = config.before_connect(async |config| Ok(config.sentinel_credentials("asker", "asks")));
    connected(renewed).await;
    let url = format!("redis://asker:asks@127.0.0.1:{}", sentinels.servers[0].port());
    let config = RedisConfig::sentinel("guarded", [url]).credentials("default", "masters");
    assert!(!format!("{config:?}").contains("asks") && !format!("{config:?}").contains("masters"), "{config:?}");
    connected(config).await;
}

#[tokio::test]
async fn an_unknown_master_name_is_an_error() {
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    rejected(&RedisConfig::sentinel("unknown", sentinels.urls()).patient(), "knows no available master of this name")
        .await;
}

/// Connections of a Sentinel to the master and to itself log in as `default`. They do not belong to the store.
#[tokio::test]
async fn documented_permissions_suffice_for_sentinels_and_masters() {
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let sentinel = &sentinels.servers[0];
    let at_master = [documented(), documented_for("a master behind Sentinel")].concat();
    let at_sentinel = documented_for("the Sentinels themselves");
    let at_sentinel = [&["-@all"], &at_sentinel[..]].concat();
    let config = |user: &str| {
        let config = RedisConfig::sentinel(MASTER, sentinels.urls()).patient();
        config.credentials(user, "s3cret").sentinel_credentials(user, "s3cret")
    };
    let () = master.ask(&set_user("limits", &at_master));
    let () = sentinel.ask(&set_user("limits", &at_sentinel));
    assert_eq!(charge(&limiter(connected(config("limits")).await).build()).await, 1);
    for server in [&master, sentinel] {
        assert_eq!(rejected_by(&server.ask::<Vec<_>>(cmd("ACL").arg("LOG"))), [""; 0]);
    }
    for (without, rules) in each_missing(&documented_for("a master behind Sentinel")) {
        let () = master.ask(&set_user(without, &[&documented()[..], &rules].concat()));
        let () = sentinel.ask(&set_user(without, &at_sentinel));
        rejected(&config(without), "ACL SETUSER").await;
    }
    for (without, rules) in each_missing(&at_sentinel) {
        let user = format!("sentinel {without}").replace(' ', "-");
        let () = master.ask(&set_user(&user, &at_master));
        let () = sentinel.ask(&set_user(&user, &rules));
        rejected(&config(&user), "ACL SETUSER").await;
    }
}
