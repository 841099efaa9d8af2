//! What the errors of servers say, and what connecting verifies.

use std::thread;

use deadpool_redis::redis::{Client, Cmd, FromRedisValue, cmd};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tower_ratelimit::{FixedWindow, Limit, Limiter, RedisConfig};

use crate::connections::{charge, limiter};
use support::patient::Patient;
use support::redis_cluster::RedisCluster;
use support::redis_server::{RedisServer, free_port, wait_until};
use support::sentinel::{MASTER, Sentinels};

fn words(command: &str) -> Cmd {
    let mut words = command.split(' ');
    let mut command = cmd(words.next().expect("a command"));
    words.for_each(|word| _ = command.arg(word));
    command
}

fn run<T: FromRedisValue>(server: &RedisServer, command: &str) -> T {
    server.ask(&words(command))
}

/// Starts a server that replies with a text to whatever it receives, or else closes the connection. Returns its URL.
async fn replying(reply: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let (Ok(1..), Some(reply)) = (client.read(&mut [0; 4_096]).await, reply) {
                    let _ = client.write_all(reply.as_bytes()).await;
                }
            });
        }
    });
    url
}

/// Starts a proxy that answers `HELLO` with this error. Returns its URL.
async fn without_hello(server: &RedisServer, error: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (url, port) = (format!("redis://{}", listener.local_addr().expect("an address")), server.port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut first = vec![0; 4_096];
                let length = client.read(&mut first).await.unwrap_or(0);
                if first.windows(5).any(|word| word == b"HELLO") {
                    let _ = client.write_all(format!("-{error}\r\n").as_bytes()).await;
                    return;
                }
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
                let _ = server.write_all(&first[..length]).await;
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    url
}

/// Returns the error of connecting.
async fn error_of(config: RedisConfig) -> String {
    config.patient().connect().await.expect_err("it can't be used").to_string()
}

/// Checks that an error has a text, and not the advice for another cause.
fn says(error: &str, expected: &str) {
    println!("{error}");
    assert!(error.contains(expected), "{error}");
    for misleading in ["can't be reached", "rename-command", "a call to Redis failed", "Redis could not decide"] {
        assert!(expected.contains(misleading) || !error.contains(misleading), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_names_the_kind_of_server_that_answers() {
    for reply in ["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "ERROR\r\n", "SSH-2.0-OpenSSH_9.2\r\n"] {
        says(&error_of(RedisConfig::node(replying(Some(reply)).await)).await, "what answers is not Redis");
    }
    let closing = error_of(RedisConfig::node(replying(None).await)).await;
    says(&closing, "Redis can't be reached: check that it runs, the host and the port, and that both ends speak TLS");
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    says(&error_of(RedisConfig::node(&sentinels.urls()[0])).await, "`RedisConfig::sentinel`");
    says(&error_of(RedisConfig::cluster(sentinels.urls())).await, "`RedisConfig::sentinel`");
    says(&error_of(RedisConfig::sentinel(MASTER, [master.url()])).await, "not a Sentinel: list Sentinels");
    says(&error_of(RedisConfig::cluster([master.url()])).await, "not part of a Cluster: use `RedisConfig::node`");
    let cluster = RedisCluster::start(0);
    let mut elsewhere = 0;
    for url in cluster.urls() {
        // One of the masters has the key that is checked.
        match RedisConfig::node(url).patient().connect().await {
            Err(error) => says(&error.to_string(), "use `RedisConfig::cluster`"),
            Ok(store) => {
                let limiter = limiter(store).build();
                for key in 0..100 {
                    if let Err(error) = limiter.acquire(key, 1).await {
                        says(&error.to_string(), "use `RedisConfig::cluster`");
                        elsewhere += 1;
                    }
                }
            }
        }
    }
    assert!(elsewhere > 30, "{elsewhere}");
    let alone = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    says(&error_of(RedisConfig::cluster([alone.url()])).await, "check with CLUSTER INFO that all slots are assigned");
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let () = run(&alone, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
    wait_until("it has all slots", || run::<String>(&alone, "CLUSTER INFO").contains("cluster_state:ok"));
    let store = RedisConfig::node(alone.url()).patient().connect().await.expect("a connection");
    let limits = ["one", "other"].map(|name| Limit::new(name, FixedWindow::per_hour(10)));
    let limiter = Limiter::builder(limits).patient().store(store).build();
    let error = limiter.acquire_charges(&[(&"ann", 1), (&"bob", 1)]).await.expect_err("two slots");
    says(&error.to_string(), "use `RedisConfig::cluster`");
}

/// Servers of other products, and proxies, know only RESP2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_resp3_are_used_in_resp2() {
    let server = RedisServer::start();
    let mut charged = 0;
    for error in ["NOPROTO unsupported protocol version", "ERR unknown command 'HELLO', with args beginning with: '3' "]
    {
        let store = RedisConfig::node(without_hello(&server, error).await).patient().connect().await;
        charged += 1;
        assert_eq!(charge(&limiter(store.expect("a connection in RESP2")).build()).await, charged, "{error}");
    }
    let resp = || {
        let clients: String = run(&server, "CLIENT LIST");
        let of_store = clients.lines().filter(|client| client.contains("cmd=evalsha"));
        of_store.map(|client| client.split("resp=").nth(1).and_then(|resp| resp.chars().next())).collect::<Vec<_>>()
    };
    // Redis before 7.0 does not list it.
    if run::<String>(&server, "CLIENT LIST").contains("resp=") {
        for (url, expected) in [
            (server.url(), '3'),
            (format!("{}/?protocol=resp3", server.url()), '3'),
            (format!("{}/?protocol=resp2", server.url()), '2'),
            (format!("{}?protocol=2", server.url()), '2'),
        ] {
            wait_until("earlier connections are closed", || resp().is_empty());
            let store = RedisConfig::node(&url).patient().connections(1).connect().await.expect("a connection");
            let limiter = limiter(store).build();
            charged += 1;
            assert_eq!(charge(&limiter).await, charged, "{url}");
            assert_eq!(resp(), [Some(expected)], "{url}");
        }
    }
}

/// What a server replies to everything, and what the error says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_server_that_serves_nobody_is_explained() {
    for (reply, expected) in [
        ("-ERR max number of clients reached\r\n", "raise `maxclients`"),
        ("-DENIED Redis is running in protected mode because protected mode is enabled\r\n", "in protected mode"),
        ("-LOADING Redis is loading the dataset in memory\r\n", "is loading its data"),
        ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n", "lost its master"),
        ("-BUSY Redis is busy running a script. You can only call SCRIPT KILL.\r\n", "end it with SCRIPT KILL"),
        ("-NOAUTH HELLO must be called with the client already authenticated\r\n", "the user or the password"),
        ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "the user or the password"),
        ("-CLUSTERDOWN The cluster is down\r\n", "the Cluster does not work"),
    ] {
        says(&error_of(RedisConfig::node(replying(Some(reply)).await)).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_server_that_serves_nobody_is_explained() {
    let server = RedisServer::start();
    let config = || RedisConfig::node(server.url());
    says(&error_of(RedisConfig::node(format!("{}/99", server.url()))).await, "does not have the database of the URL");
    let mut connection = server.connection().await;
    let () = words("CONFIG SET maxclients 1").query_async(&mut connection).await.expect("a reply");
    says(&error_of(config()).await, "raise `maxclients`");
    let () = words("CONFIG SET maxclients 1000").query_async(&mut connection).await.expect("a reply");
    let store = config().patient().connect().await.expect("a connection");
    let () = words("CONFIG SET lua-time-limit 5").query_async(&mut connection).await.expect("a reply");
    let mut other = Client::open(server.url()).and_then(|client| client.get_connection()).expect("a connection");
    let endless = thread::spawn(move || cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut other));
    wait_until("it is busy", || server.try_ask::<()>(&words("GET key")).is_err());
    says(&error_of(config()).await, "end it with SCRIPT KILL");
    let error = limiter(store.clone()).build().acquire("key", 1).await.expect_err("it is busy").to_string();
    says(&error, "end it with SCRIPT KILL");
    let () = run(&server, "SCRIPT KILL");
    assert!(endless.join().expect("a thread").is_err(), "it was killed");
    assert_eq!(charge(&limiter(store).build()).await, 1);
}

/// The settings of a server under which it accepts no writes, and what the error says.
const UNWRITABLE: [[&str; 3]; 4] = [
    ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "raise `maxmemory`"],
    ["CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "too few replicas"],
    ["CONFIG SET stop-writes-on-bgsave-error yes", "CONFIG SET stop-writes-on-bgsave-error no", "can't save its data"],
    ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "is a replica"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_fails_if_the_server_accepts_no_writes() {
    let server = RedisServer::start_unable_to_save();
    for [begin, end, expected] in UNWRITABLE {
        let () = run(&server, begin);
        says(&error_of(RedisConfig::node(server.url())).await, expected);
        // Decisions that write nothing are possible meanwhile.
        let lazy = RedisConfig::node(server.url()).patient().connect_lazily().expect("a store");
        let limiter = limiter(lazy).build();
        assert!(limiter.peek("key", 1).await.expect("a decision").is_allowed());
        let error = limiter.acquire("key", 1).await.expect_err("a charge").to_string();
        says(&error, expected);
        let () = run(&server, end);
    }
    let store = RedisConfig::node(server.url()).patient().connect().await.expect("it accepts writes");
    assert_eq!(charge(&limiter(store).build()).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_fails_if_the_user_may_not_access_keys_of_the_prefix() {
    let server = RedisServer::start();
    let () = run(&server, "ACL SETUSER limits on >s3cret resetkeys ~mails:* +@all");
    let config = || RedisConfig::node(server.url()).patient().credentials("limits", "s3cret");
    let error = config().connect().await.expect_err("another prefix").to_string();
    assert!(error.contains("ACL SETUSER") && error.contains("ACL LOG"), "{error}");
    assert!(config().prefix("mail").connect().await.is_err());
    let store = config().prefix("mails").connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store).build()).await, 1);
    assert!(run::<Vec<String>>(&server, "KEYS *").iter().all(|key| key.starts_with("mails:")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_fails_if_a_cluster_announces_addresses_that_nobody_can_reach() {
    let cluster = RedisCluster::start(0);
    let config = || RedisConfig::cluster(cluster.urls()).patient();
    let unused = free_port();
    for node in 0..2 {
        assert!(config().connect().await.is_ok(), "one master in three may be down");
        cluster.run(node, &format!("CONFIG SET cluster-announce-port {unused}"));
        let announces = |from| cluster.ask::<String>(from, "CLUSTER NODES").matches(&format!(":{unused}@")).count();
        wait_until("it is announced", || (0..3).all(|from| announces(from) > node));
    }
    let error = config().connect().await.expect_err("two in three").to_string();
    println!("{error}");
    assert!(error.contains("cluster-announce-ip") && error.contains(&unused.to_string()), "{error}");
}

#[test]
fn settings_without_effect_are_errors() {
    let node = || RedisConfig::node("redis://127.0.0.1");
    for (config, reported) in [
        (RedisConfig::node("redis://127.0.0.1?timeout=5"), "the parameter \"timeout\", which has no effect"),
        (RedisConfig::node("redis://127.0.0.1/?db=5"), "the parameter \"db\""),
        (RedisConfig::node("redis://127.0.0.1/?protocol=resp4"), "Invalid protocol version"),
        (RedisConfig::node("redis+unix:///run/redis.sock?dbs=3"), "the parameter \"dbs\""),
        (RedisConfig::node("redis://127.0.0.1#insecure"), "a # or a ? that has no effect"),
        (RedisConfig::node("redis://limits:12#secret@127.0.0.1"), "a # or a ? that has no effect"),
        (RedisConfig::node("redis://limits:12?secret@127.0.0.1"), "a # or a ? that has no effect"),
        (RedisConfig::cluster(["redis://127.0.0.1/?timeout=5"]), "timeout"),
        (RedisConfig::sentinel("limits", ["redis://127.0.0.1/?timeout=5"]), "timeout"),
        (node().sentinel_credentials("user", "secret"), "have no effect without Sentinel"),
        (node().master_database(0), "have no effect without Sentinel"),
        (node().master_tls(false), "have no effect without Sentinel"),
        (RedisConfig::cluster(["redis://127.0.0.1"]).master_database(3), "have no effect without Sentinel"),
        (RedisConfig::cluster(["redis://a", "redis://:secret@b"]), "differ in TLS or the password"),
        (RedisConfig::cluster(["redis://a", "valkeys://b"]), "differ in TLS or the password"),
    ] {
        let text = config.connect_lazily().expect_err(reported).to_string();
        assert!(text.contains(reported), "{text}");
        assert!(!text.contains("secret@"), "{text}");
    }
    for config in [
        RedisConfig::node("redis+unix:///run/redis.sock?db=3&user=limits&pass=secret&protocol=resp2"),
        RedisConfig::node("redis://limits@127.0.0.1").credentials("limits", "secret"),
        RedisConfig::cluster(["redis://:secret@a", "redis://b", "redis://:secret@c"]),
        RedisConfig::cluster(["redis://a", "redis://:secret@b"]).credentials("limits", "secret"),
        RedisConfig::sentinel("limits", ["redis://:one@a", "redis://:other@b"]).master_database(3),
    ] {
        config.connect_lazily().expect("a valid configuration");
    }
}

#[tokio::test]
async fn a_sentinel_that_rejects_the_password_is_told_from_the_master() {
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let () = run(&sentinels.servers[0], "ACL SETUSER default resetpass >other");
    let config = RedisConfig::sentinel(MASTER, sentinels.urls()).credentials("default", "secret");
    says(&error_of(config).await, "`sentinel_credentials`");
}
