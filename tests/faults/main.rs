//! Redis slow, gone, failed over: each fault on a real server, under load, by each policy.
#![cfg(feature = "redis")]

mod load;
#[path = "../support/patient.rs"]
mod patient;
#[path = "../support/redis_cluster.rs"]
mod redis_cluster;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[path = "../support/sentinel.rs"]
mod sentinel;

mod cluster;
mod node;
mod replicas;
