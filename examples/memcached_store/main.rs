//! Limits that several servers share through Memcached: a store of one's own, in `store.rs`.
//!
//! ```text
//! memcached --listen 127.0.0.1 &
//! cargo run --example memcached_store --features memcached -- tcp://127.0.0.1:11211
//! curl -i http://127.0.0.1:3000/
//! ```

mod store;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};

use self::store::Memcached;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "tcp://127.0.0.1:11211".to_owned());
    let store = CasStore::new(Memcached::connect(&address).await?);
    let minute = Limit::new("minute", FixedWindow::per_minute(10));
    let limits = RateLimitLayer::builder([minute]).store(store).build();
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limits);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
