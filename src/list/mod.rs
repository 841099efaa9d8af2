//! Lists of addresses and keys that are checked before any limit, and can be replaced at runtime.

mod action;
mod addresses;
mod keys;

pub use action::ListAction;
pub use addresses::AddressList;
pub use keys::KeyList;
