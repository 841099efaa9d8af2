//! A standalone rate limiter for proxies and services in any language, by Envoy's rate limit service, forward
//! authentication, and JSON.

mod admin;
mod envoy;
mod forward_auth;
mod json;
mod rules;
mod serve;
mod settings;
mod shutdown;

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use clap::Parser;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use http::StatusCode;
use tokio::net::TcpListener;
use tower_ratelimit::when::Condition;
use tower_ratelimit::{AddressList, RequestHead};

use crate::envoy::{RateLimitService, UnknownDomains};
use crate::rules::Domain;
use crate::settings::Settings;
use crate::shutdown::Shutdown;

/// The most connections for checks.
const MAX_CONNECTIONS: usize = 10_000;

/// The most connections of operators.
const MAX_ADMIN_CONNECTIONS: usize = 100;

/// The state that all handlers share.
#[derive(Clone)]
struct App {
    domains: Arc<HashMap<String, Domain>>,
    unknown_domains: UnknownDomains,
    trusted_peers: AddressList,
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::parse();
    if settings.print_rules {
        print!("{}", rules::BUILT_IN);
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt().with_max_level(settings.log_level).with_writer(std::io::stderr).init();
    let done = if settings.publish_rules { rules::publish(&settings).await } else { run(&settings).await };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tower-ratelimit: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process receives SIGTERM or SIGINT.
async fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let exporter = admin::install_metrics()?;
    let trusted_peers = settings.trusted_peers()?;
    let domains = Arc::new(rules::load(settings).await?);
    let app = App { domains, unknown_domains: UnknownDomains::default(), trusted_peers };
    let (reporter, grpc_health) = tonic_health::server::health_reporter();
    let shutdown = Shutdown::new(settings.drain())?;
    let health = admin::Health::new(shutdown.clone());

    let public = Router::new()
        .route_service("/grpc.health.v1.Health/{method}", grpc_health)
        .route("/healthz", get(admin::health))
        .layer(middleware::from_fn(serve::in_time));
    let checks = Router::new()
        .route("/auth/{domain}", any(forward_auth::of_headers))
        .route("/ext_authz/{domain}", any(forward_auth::of_request))
        .route("/ext_authz/{domain}/", any(forward_auth::of_request))
        .route("/ext_authz/{domain}/{*path}", any(forward_auth::of_request))
        .route("/json", post(json::should_rate_limit))
        .route_service(
            "/envoy.service.ratelimit.v3.RateLimitService/{method}",
            RateLimitServiceServer::new(RateLimitService(app.clone())),
        )
        .layer(middleware::from_fn_with_state(app.trusted_peers.clone(), only_trusted))
        .merge(public)
        .layer(middleware::from_fn_with_state(shutdown.clone(), shutdown::close_connections))
        .layer(Extension(health.clone()))
        .with_state(app.clone());
    let admin = Router::new()
        .route("/metrics", get(admin::metrics))
        .route("/explain", post(admin::explain))
        .layer(middleware::from_fn(serve::in_time))
        .layer(Extension(exporter))
        .with_state(app.clone());

    let listener = bind("--listen", settings.listen).await?;
    let admin_listener = bind("--listen-admin", settings.listen_admin).await?;
    tracing::info!(address = %listener.local_addr()?, admin = %admin_listener.local_addr()?, "ready");
    tokio::spawn(health.report(app, reporter, settings.health_needs_store));
    tokio::join!(
        shutdown.finish(serve::serve(listener, checks, MAX_CONNECTIONS, shutdown.clone().drained())),
        shutdown.finish(serve::serve(admin_listener, admin, MAX_ADMIN_CONNECTIONS, shutdown.clone().drained())),
    );
    Ok(())
}

async fn bind(setting: &str, address: SocketAddr) -> Result<TcpListener, String> {
    let hint = "choose an address of this machine, and a port that is free";
    TcpListener::bind(address).await.map_err(|error| format!("{setting} {address}: {error}: {hint}"))
}

/// Rejects checks of peers that are not trusted proxies: they could use up the limits of others.
async fn only_trusted(State(trusted): State<AddressList>, request: Request, next: Next) -> Response {
    if trusted.holds(&RequestHead::of(&request)) {
        return next.run(request).await;
    }
    // Neither 401 nor 403, which nginx would handle as a denial.
    let message = "this peer is not a trusted proxy: add its address to --trusted-proxies\n";
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
}
