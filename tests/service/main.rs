//! The standalone limiter of `service`, as a program, alone and behind nginx and Caddy.

mod connections;
mod envoy;
mod forward_auth;
mod program;
mod proxies;
mod reload;
mod settings;
mod shutdown;
mod store;
