//! Redis slow, gone, failed over: each fault on a real server, under load, by each policy.

mod load;

mod cluster;
mod node;
mod replicas;
