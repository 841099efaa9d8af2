//! Addresses and keys that are dealt with before any limit: lists, which can be long, and replaced
//! while requests are served.

mod addresses;
mod keys;
mod refusal;

pub use addresses::AddressList;
pub use keys::KeyList;
pub use refusal::Refusal;
