//! Penalties: keys that are denied too often are locked out. The same tests run on every store.
#![allow(clippy::unwrap_used)]

mod backend;
mod bounded;
mod exact;
mod fallback;
mod http;
mod oracle;
mod random;
mod redis;
mod refusals;
