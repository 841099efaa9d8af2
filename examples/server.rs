//! A server to try every limit on: `cargo run --example server`, then `curl` as it says.
//!
//! It listens on 127.0.0.1:3000, or where `--listen` says, and remembers in memory, or in the Redis
//! that `--redis` names (`cargo run --example server --features redis -- --redis redis://127.0.0.1:6379`): several servers
//! on one Redis share their limits. Whoever sends the header `x-user` is counted by it, everyone else by address.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::{
    Algorithm, CostTable, FixedWindow, HeaderStyle, LeakyBucket, LeakyBucketQueue, Limit, MemoryStore, RateLimitLayer,
    Reset, SlidingLog, SlidingWindow, SlidingWindowCounter, Store, TokenBucket,
};

const USAGE: &str = "usage: server [--listen ADDRESS:PORT] [--redis redis://ADDRESS:PORT]";

const PERIOD: Duration = Duration::from_secs(10);

/// One route for each algorithm.
fn algorithms() -> [(&'static str, Algorithm); 7] {
    [
        ("fixed-window", FixedWindow::new(10, PERIOD).into()),
        ("sliding-log", SlidingLog::new(10, PERIOD).into()),
        ("sliding-window", SlidingWindow::new(10, PERIOD).into()),
        ("sliding-window-counter", SlidingWindowCounter::new(10, PERIOD).into()),
        ("token-bucket", TokenBucket::new(10, 10, PERIOD).into()),
        ("leaky-bucket", LeakyBucket::new(10, 10, PERIOD).into()),
        ("leaky-bucket-queue", LeakyBucketQueue::per_second(1).waiting(5).into()),
    ]
}

fn app(store: &Arc<dyn Store>) -> Router {
    let layer = |limits: Vec<Limit>| {
        let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(Reset::Seconds)];
        RateLimitLayer::builder(limits).store(store.clone()).headers(styles).build()
    };
    let limited = |limits| get("ok\n").route_layer(layer(limits));

    let mut app = Router::new().route("/", get(help()));
    for (name, algorithm) in algorithms() {
        app = app.route(&format!("/{name}"), limited(vec![limit(name, algorithm)]));
    }

    // Reading costs 1 and writing 2, from one bucket.
    let users = layer(vec![limit("user", FixedWindow::new(10, PERIOD))]);
    let costs = CostTable::new().route(Method::POST, "/user", 2);
    app = app.route("/user", get("read\n").post("created\n").route_layer(users.costs(costs)));

    // Both, or none: a request that comes too fast does not count towards the day.
    let friends = vec![limit("second", TokenBucket::per_second(1)), limit("day", FixedWindow::per_day(150))];
    app.route("/friends", limited(friends))
}

fn limit(name: &str, algorithm: impl Into<Algorithm>) -> Limit {
    Limit::new(name, algorithm).by(key::header("x-user").or(key::peer_ip()))
}

fn help() -> String {
    let mut help = String::from("10 requests per 10 seconds, by one algorithm each:\n");
    for (name, _) in algorithms() {
        help += &format!("  GET /{name}\n");
    }
    help += "The last one delays rather than refuses: one a second goes on, 5 may wait.\n\
             10 tokens per 10 seconds:\n  GET /user costs 1, POST /user costs 2\n\
             One a second and 150 a day:\n  GET /friends\n\
             Send `x-user: NAME` to be counted as NAME.\n";
    help
}

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        println!("A server to try every limit on.\n{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Options { listen, redis } = match Options::of_command_line() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let store: Arc<dyn Store> = match &redis {
        None => Arc::new(MemoryStore::new()),
        Some(url) => match connect(url).await {
            Ok(store) => store,
            Err(message) => {
                eprintln!("{message}");
                return ExitCode::FAILURE;
            }
        },
    };
    match serve(listen, app(&store)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("can't serve on {listen}: {error}; choose another address with --listen");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "redis")]
async fn connect(url: &str) -> Result<Arc<dyn Store>, String> {
    let store = tower_ratelimit::RedisStore::connect(url).await.map_err(|error| format!("{error:?}"))?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "redis"))]
async fn connect(url: &str) -> Result<Arc<dyn Store>, String> {
    Err(format!("built without Redis: use `cargo run --example server --features redis -- --redis {url}`"))
}

async fn serve(address: SocketAddr, app: Router) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let stop = told_to_stop()?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:\n");
    println!("  curl -i http://{address}/token-bucket");
    println!(
        "  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/token-bucket; done"
    );
    println!("  curl -i http://{address}/token-bucket\n\nand http://{address}/ for all routes.");

    // The limits count by address: the server has to say whose a connection is.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(stop).await
}

struct Options {
    listen: SocketAddr,
    redis: Option<String>,
}

impl Options {
    fn of_command_line() -> Result<Self, String> {
        let mut options = Self { listen: SocketAddr::from(([127, 0, 0, 1], 3000)), redis: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--listen" => {
                    let value = arguments.next().ok_or("--listen wants an address, such as 127.0.0.1:8080")?;
                    let address = value.parse();
                    options.listen = address.map_err(|_| format!("{value:?} is no address such as 127.0.0.1:8080"))?;
                }
                "--redis" => {
                    let url = arguments.next().ok_or("--redis wants a URL, such as redis://127.0.0.1:6379")?;
                    options.redis = Some(url);
                }
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Ends at Ctrl-C or SIGTERM, for both of which it listens from now on.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}
