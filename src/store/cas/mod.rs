//! Limits on any database with compare-and-swap.
//!
//! | chapter | content |
//! | --- | --- |
//! | `backend` | what a database must support |
//! | `database` | the rows: their names, their lifetimes, and how requests read and write them |
//! | `decide` | the decision on a request, and refunds |
//! | `operation` | how operations take turns, try again, and are completed |
//! | `overrides` | overrides for single keys |
//! | `store` | the public type and its configuration |

mod backend;
mod database;
mod decide;
mod operation;
mod overrides;
mod store;
#[cfg(test)]
mod tests;

pub use self::backend::{CompareAndSwap, Versioned};
pub use self::store::CasStore;
