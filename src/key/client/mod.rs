//! The client's address behind proxies.

mod address;
mod error;
mod forwarded;
mod ip;
mod node;
mod proxies;
mod source;

pub use address::ClientAddress;
pub use error::AddressError;
pub use ip::{ClientIp, client_ip};
pub use proxies::TrustedProxies;
pub use source::{AddressFromFn, AddressSource, address_from_fn};
