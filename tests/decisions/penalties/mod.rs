//! Penalties: keys that are denied too often are locked out. The same tests run on every store.
#![allow(clippy::unwrap_used)]

mod bounded;
mod exact;
mod fallback;
mod http;
mod oracle;
mod place;
mod random;
mod redis;
