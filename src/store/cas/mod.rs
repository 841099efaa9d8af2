//! Limits on any database with compare-and-swap.

mod backend;
mod completion;
mod database;
mod entry;
mod error;
mod key_locks;
mod overrides;
mod refund;
mod request;
mod retry;
mod store;
mod stored_override;

pub use self::backend::{CompareAndSwap, Versioned};
pub use self::store::CasStore;
