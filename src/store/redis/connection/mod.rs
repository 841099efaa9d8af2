//! A few connections to each server, shared by all calls and replaced when they break.

mod pool;
mod pooled;
mod shared;
mod source;
mod states;

pub(super) use self::pool::ConnectionPool;
pub(super) use self::source::{Source, settings, tcp_settings};
