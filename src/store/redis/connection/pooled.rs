//! A shared connection, and its health.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;

/// A connection that breaks within this time counts as a failed attempt.
const STABLE_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct PooledConnection {
    /// Its index in the pool.
    pub(super) index: usize,
    pub(super) connection: MultiplexedConnection,
    health: Arc<Health>,
}

#[derive(Debug)]
struct Health {
    /// The failed attempts before this connection.
    failures: u32,
    opened: Instant,
    /// A call was answered.
    is_proven: AtomicBool,
    /// A caller gave up on a reply, and a check is under way.
    is_suspect: AtomicBool,
}

impl PooledConnection {
    pub(super) fn new(index: usize, connection: MultiplexedConnection, failures: u32) -> Self {
        let health = Health {
            failures,
            opened: Instant::now(),
            is_proven: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
        };
        Self { index, connection, health: Arc::new(health) }
    }

    /// Notes that a call was answered: if the connection breaks, it is replaced at once.
    pub(super) fn mark_proven(&self) {
        self.health.is_proven.store(true, Ordering::Relaxed);
    }

    /// Returns how many attempts in a row have failed if this connection breaks now. A connection that breaks at once,
    /// as all connections to a replica do, is a failed attempt.
    pub(super) fn failures(&self) -> u32 {
        let is_stable = self.health.is_proven.load(Ordering::Relaxed) || self.health.opened.elapsed() > STABLE_AFTER;
        if is_stable { 0 } else { self.health.failures.saturating_add(1) }
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.health.is_suspect.load(Ordering::Relaxed)
    }

    /// Marks the connection as suspect. Returns whether it was not suspect before.
    pub(super) fn mark_suspect(&self) -> bool {
        !self.health.is_suspect.swap(true, Ordering::Relaxed)
    }

    pub(super) fn clear_suspicion(&self) {
        self.health.is_suspect.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }
}
