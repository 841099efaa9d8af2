//! Addresses and keys that are dealt with before any limit: lists, which can be long, and replaced
//! while requests are served.

mod action;
mod addresses;
mod keys;

pub use action::ListAction;
pub use addresses::AddressList;
pub use keys::KeyList;
