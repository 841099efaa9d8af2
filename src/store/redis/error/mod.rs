//! The errors of a store.

mod fault;
mod message;

pub(super) use self::fault::{Fault, Redirect};
