//! Worked policies, each in a file of its own to copy from: `cargo run --example policies --features policies --
//! friends`, then `curl` as it says.
//!
//! They listen on 127.0.0.1:3000, or where `--listen` says, and remember in memory, or in the Redis that
//! `--redis` names. `src/guide/policies.md` explains them.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tower_ratelimit::{MemoryStore, RedisStore, Store};

pub(crate) mod accounts;
pub(crate) mod cdn;
pub(crate) mod completions;
pub(crate) mod costs;
pub(crate) mod countries;
pub(crate) mod friends;
pub(crate) mod logins;
pub(crate) mod messages;
pub(crate) mod night;
pub(crate) mod operators;
pub(crate) mod payments;
pub(crate) mod plans;
pub(crate) mod rules;
pub(crate) mod spending;

/// A policy's name, its program, and what to try on it.
pub(crate) type Policy = (&'static str, fn(Arc<dyn Store>) -> Router, &'static str);

pub(crate) const POLICIES: [Policy; 14] = [
    ("friends", friends::app, friends::TRY),
    ("accounts", accounts::app, accounts::TRY),
    ("cdn", cdn::app, cdn::TRY),
    ("countries", countries::app, countries::TRY),
    ("payments", payments::app, payments::TRY),
    ("spending", spending::app, spending::TRY),
    ("messages", messages::app, messages::TRY),
    ("costs", costs::app, costs::TRY),
    ("plans", plans::app, plans::TRY),
    ("night", night::app, night::TRY),
    ("logins", logins::app, logins::TRY),
    ("completions", completions::app, completions::TRY),
    ("operators", operators::app, operators::TRY),
    ("rules", rules::app, rules::TRY),
];

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some((_, app, tries)) = POLICIES.iter().find(|(known, ..)| *known == name) else { return Ok(usage()) };
    let (mut listen, mut redis) = ("127.0.0.1:3000".to_owned(), None);
    while let Some(option) = arguments.next() {
        match (option.as_str(), arguments.next()) {
            ("--listen", Some(address)) => listen = address,
            ("--redis", Some(url)) => redis = Some(url),
            _ => return Ok(usage()),
        }
    }

    // Shows what the limiter logs.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let store: Arc<dyn Store> = match redis {
        Some(url) => Arc::new(RedisStore::connect(&url).await?),
        None => Arc::new(MemoryStore::new()),
    };
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Try:\n\n{}\n", tries.trim().replace("HOST", &address.to_string()));
    // Some limits count by address: the server has to say whose a connection is.
    axum::serve(listener, app(store).into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    let names = POLICIES.map(|(name, ..)| name).join(", ");
    eprintln!("usage: policies POLICY [--listen ADDRESS:PORT] [--redis URL]\nPOLICY is one of {names}.");
    ExitCode::from(2)
}
