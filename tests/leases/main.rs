//! Leases: decisions without a call, which never exceed the limit.

mod costs;
mod directed;
mod faults;
mod features;
mod fleet;
mod judge;
mod servers;
mod simulation;
mod world;
