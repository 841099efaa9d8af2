//! Leases: decisions without a call, which never exceed the limit.

mod costs;
mod directed;
mod features;
mod judge;
mod simulation;
mod world;
