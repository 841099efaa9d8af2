//! The Redis store, on real servers.

mod cluster;
mod connections;
mod denials;
mod explain;
mod script;
mod store;
