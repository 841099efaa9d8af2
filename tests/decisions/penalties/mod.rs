//! Who is denied too often is refused for a while: on every store, the same.
#![allow(clippy::unwrap_used)]

mod bounded;
mod exact;
mod fallback;
mod http;
mod oracle;
mod place;
mod random;
mod redis;
