//! A server to try every algorithm: `cargo run --example server`, then open the page that it prints, or use `curl`.
//!
//! It listens on 127.0.0.1:3000, or at `--listen`. It keeps its state in memory, or in the Redis at `--redis`
//! (`cargo run --example server --features redis -- --redis redis://127.0.0.1:6379`): several servers on one Redis
//! share their limits. Requests are counted by the header `x-user`, or else by the client's address.

mod algorithms;
mod explain;
mod limits;
mod metrics;
mod options;
mod page;
mod routes;
mod settings;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tower_ratelimit::{MemoryStore, Store};

use self::limits::Backend;
use self::options::{Options, USAGE};

/// The time that requests have to complete after Ctrl-C or SIGTERM, before their connections are closed.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Bounds the memory of clients that send ever new names: the largest log of a key has a few kilobytes.
const MAX_KEYS: usize = 10_000;

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        println!("A server to try every rate limiting algorithm.\n{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), String> {
    // Shows misconfiguration and outages of Redis on the console.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let store: Arc<dyn Store> = match &options.redis {
        None => Arc::new(MemoryStore::new().max_keys(MAX_KEYS)),
        Some(url) => connect(url).await?,
    };
    let address = options.listen;
    let (metrics, export) =
        metrics::install().map_err(|error| format!("can't install the exporter of metrics: {error}"))?;
    serve(address, routes::app(&Backend { store, metrics }, export))
        .await
        .map_err(|error| format!("can't serve on {address}: {error}; choose another address with --listen"))
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
    let (shutdown, signalled) = (shutdown_signal()?, shutdown_signal()?);
    let url = format!("http://{}", listener.local_addr()?);
    println!("Open {url}/ in a browser, or try:\n");
    println!("  curl -i {url}/token-bucket");
    println!("  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/token-bucket; done");
    println!("  curl -i {url}/token-bucket\n\n{url}/help lists all routes.");

    // Gives the limiter each client's address.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let deadline = async {
        signalled.await;
        sleep(GRACE_PERIOD).await;
    };
    tokio::select! {
        result = axum::serve(listener, service).with_graceful_shutdown(shutdown).into_future() => result,
        () = deadline => Ok(()),
    }
}

/// Installs handlers for Ctrl-C and SIGTERM, and returns a future that completes on either.
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
