//! What happens when a store is slow or fails, by what requests and observers see of it. Time is Tokio's,
//! and stands still but for what is waited for.

mod limited;

mod breaker;
mod bugs;
mod config;
mod deadline;
mod events;
mod explain;
mod faults;
mod fleet;
mod metrics;
mod nodes;
mod policies;
mod receipts;
mod recorder;
mod routes;
mod shares;
