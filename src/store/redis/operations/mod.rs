//! The operations of a store, each in terms of requests to the script.

mod change;
mod cross_slot;
mod decide;
mod overrides;
mod perform;
mod report;
mod store;
