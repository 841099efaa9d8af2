//! A connection that is shared, and what is known of its health.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, RedisError, Value, pipe};

use super::lines::Lines;

/// Who lasts for so long did not break at once.
const LASTS: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) connection: MultiplexedConnection,
    health: Arc<Health>,
}

#[derive(Debug)]
struct Health {
    /// How many attempts failed before.
    failures: u32,
    opened: Instant,
    /// A call was answered.
    is_proven: AtomicBool,
    /// Someone gave up on a reply, and it is being checked whether any will come.
    is_suspect: AtomicBool,
}

impl Link {
    pub(super) fn new(line: usize, connection: MultiplexedConnection, failures: u32) -> Self {
        let health = Health {
            failures,
            opened: Instant::now(),
            is_proven: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
        };
        Self { line, connection, health: Arc::new(health) }
    }

    /// Sends a command. Who gives up before the reply is there leaves a connection that may have
    /// lost its peer: it is then checked.
    pub(super) async fn send(&mut self, command: &Cmd, lines: &Arc<Lines>) -> Result<Value, RedisError> {
        let mut unanswered = Unanswered { lines, line: self.line, health: &self.health, is_over: false };
        let reply = command.query_async(&mut self.connection).await;
        unanswered.is_over = true;
        reply
    }

    /// Like [`send`](Self::send), for keys that another master of a Cluster is moving to this one.
    pub(super) async fn send_asking(&mut self, command: &Cmd, lines: &Arc<Lines>) -> Result<Value, RedisError> {
        // One after the other on one connection: the first holds for the second only.
        let mut both = pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut unanswered = Unanswered { lines, line: self.line, health: &self.health, is_over: false };
        let replies = self.connection.send_packed_commands(&both, 0, 2).await;
        unanswered.is_over = true;
        // If `ASKING` is refused, the second reply says only that the keys are elsewhere.
        let replies: Result<Vec<_>, _> = replies?.into_iter().map(Value::extract_error).collect();
        Ok(replies?.pop().unwrap_or(Value::Nil))
    }

    /// A call was answered: should the connection break, it is replaced at once.
    pub(super) fn prove(&self) {
        if !self.health.is_proven.load(Ordering::Relaxed) {
            self.health.is_proven.store(true, Ordering::Relaxed);
        }
    }

    /// How many attempts in a row have failed when this connection breaks: one that broke at once,
    /// as all do to a replica, was another failure.
    pub(super) fn failures(&self) -> u32 {
        let was_of_use = self.health.is_proven.load(Ordering::Relaxed) || self.health.opened.elapsed() > LASTS;
        if was_of_use { 0 } else { self.health.failures.saturating_add(1) }
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.health.is_suspect.load(Ordering::Relaxed)
    }

    /// Whether nobody suspected it before.
    pub(super) fn suspect(&self) -> bool {
        !self.health.is_suspect.swap(true, Ordering::Relaxed)
    }

    pub(super) fn trust(&self) {
        self.health.is_suspect.store(false, Ordering::Relaxed);
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }
}

struct Unanswered<'a> {
    lines: &'a Arc<Lines>,
    line: usize,
    health: &'a Arc<Health>,
    is_over: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let link = self.lines.link(self.line);
        if let Some(link) = link.filter(|link| Arc::ptr_eq(&link.health, self.health)) {
            self.lines.check(&link);
        }
    }
}
