//! Shares calls among concurrent requests to one server.

mod backlog;
mod queue;
mod server;
#[cfg(test)]
mod tests;

pub(super) use self::queue::Queue;
pub(super) use self::server::Server;
