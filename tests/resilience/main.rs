//! Slow and failing stores, as requests and observers see them. Most tests pause Tokio's clock.

mod limited;

mod breaker;
mod bugs;
mod config;
mod contention;
mod deadline;
mod denials;
mod details;
mod events;
mod explain;
mod faults;
mod fleet;
mod metrics;
mod nodes;
mod policies;
mod receipts;
mod recorder;
mod remembering;
mod routes;
mod runtimes;
mod shares;
