//! Faults of a single node that is reached, but rejects to decide, and of the line to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use deadpool_redis::redis::{Client, Cmd, cmd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tower_ratelimit::RedisConfig;

use crate::faults::load::{Load, Report};
use crate::faults::node::{BEFORE, DURING_FAULT, store};
use support::patient::connected;
use support::redis_server::RedisServer;

fn config(name: &str, value: &str) -> Cmd {
    cmd("CONFIG").arg("SET").arg(name).arg(value).to_owned()
}

/// Ends a load in which the store failed for a while.
async fn recovered(load: Load, fault: &str) -> Report {
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check(fault, recovery);
    assert!(report.failed() > 0);
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_with_a_script_of_another_client() {
    let server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    load.run(BEFORE).await;
    server.ask::<()>(&config("lua-time-limit", "5"));
    let mut other = Client::open(server.url()).and_then(|client| client.get_connection()).expect("a connection");
    let endless = thread::spawn(move || cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut other));
    load.run(DURING_FAULT).await;
    server.ask::<()>(cmd("SCRIPT").arg("KILL"));
    assert!(endless.join().expect("a thread").is_err(), "it was killed");
    recovered(load, "busy").await.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_its_data() {
    // It loads a key in a millisecond, and serves clients after each 2 MB.
    let mut server = RedisServer::start_with(&["--key-load-delay", "1000", "--rdbcompression", "no"]);
    let load = Load::start(&store(&server).await);
    let fill = "for i = 1, 1000 do redis.call('SET', i, ('x'):rep(50000), 'EX', 99) end";
    server.ask::<()>(cmd("EVAL").arg(fill).arg(0));
    load.run(BEFORE).await;
    server.ask::<()>(&cmd("SAVE"));
    block_in_place(|| server.restart());
    let is_loading = server.try_ask::<()>(cmd("GET").arg("key")).expect_err("it is loading").to_string();
    assert!(is_loading.contains("LOADING") || is_loading.contains("loading"), "{is_loading}");
    // Requests after the dump are forgotten.
    recovered(load, "loading").await.none_was_charged_twice(false).await;
}

/// Changes a setting under which no new connection works, cuts all others, and changes it back.
async fn rejecting_connections(fault: &str, setting: &str, during: &str, after: &str) {
    let server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    load.run(BEFORE).await;
    let mut connection = server.connection().await;
    let () = config(setting, during).query_async(&mut connection).await.expect("a setting");
    let kill = cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes").to_owned();
    let () = kill.query_async(&mut connection).await.expect("a reply");
    load.run(DURING_FAULT).await;
    let () = config(setting, after).query_async(&mut connection).await.expect("a setting");
    recovered(load, fault).await.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_clients_than_it_accepts() {
    rejecting_connections("maxclients reached", "maxclients", "1", "10000").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_password() {
    rejecting_connections("another password", "requirepass", "secret", "").await;
}

/// A line to a server that can lose what the server answers.
struct Line {
    url: String,
    is_losing: Arc<AtomicBool>,
}

impl Line {
    async fn to(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let (is_losing, port) = (Arc::new(AtomicBool::new(false)), server.port());
        let losing = is_losing.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
                let ((mut asked, mut answer), (mut answered, mut ask)) = (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut asked, &mut ask).await });
                let losing = losing.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 1 << 14];
                    while let Ok(length @ 1..) = answered.read(&mut buffer).await {
                        if !losing.load(Ordering::Relaxed) && answer.write_all(&buffer[..length]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { url, is_losing }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_loses_answers() {
    let server = RedisServer::start();
    let line = Line::to(&server).await;
    let load = Load::start(&connected(RedisConfig::node(line.url.clone())).await);
    load.run(BEFORE).await;
    line.is_losing.store(true, Ordering::Relaxed);
    load.run(DURING_FAULT).await;
    line.is_losing.store(false, Ordering::Relaxed);
    recovered(load, "answers lost").await.none_was_charged_twice(true).await;
}
