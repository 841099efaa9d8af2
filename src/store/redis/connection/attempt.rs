//! What is done about a line in the background.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;

use super::lines::{Line, Lines};
use super::link::Link;
use crate::time::jittered;

/// The first rest between two attempts, and the longest.
const REST: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Attempts to get a line a connection. Dropped before there is one, as with its runtime, it leaves
/// the line to the next call.
pub(super) struct Attempt {
    lines: Arc<Lines>,
    line: usize,
    is_over: bool,
}

impl Attempt {
    pub(super) fn new(lines: &Arc<Lines>, line: usize) -> Self {
        Self { lines: lines.clone(), line, is_over: false }
    }

    /// Opens a connection, however often that takes. After no `failures` at once.
    pub(super) async fn open(self, mut failures: u32) {
        loop {
            if failures > 0 {
                tokio::time::sleep(rest(failures)).await;
                self.lines.set(self.line, Line::Opening);
            }
            let cuts = self.lines.source.cuts();
            match self.lines.source.connect().await {
                Ok(connection) => return self.succeed(connection, failures, cuts),
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    self.lines.set(self.line, Line::Down(Arc::new(fault)));
                }
            }
        }
    }

    /// Loads the script, or else opens another connection.
    pub(super) async fn reload(self, mut link: Link) {
        let failures = link.failures();
        let cuts = self.lines.source.cuts();
        match self.lines.source.load(&mut link.connection).await {
            Ok(()) => self.succeed(link.connection, failures.saturating_sub(1), cuts),
            Err(fault) => {
                if failures > 0 {
                    self.lines.set(self.line, Line::Down(Arc::new(fault)));
                }
                drop(link);
                self.open(failures).await;
            }
        }
    }

    /// There were so many `cuts` when it began.
    fn succeed(mut self, connection: MultiplexedConnection, failures: u32, cuts: u64) {
        self.is_over = true;
        let link = Link::new(self.line, connection, failures);
        self.lines.set(self.line, Line::Open(link.clone()));
        if self.lines.source.cuts() != cuts {
            // It may have been this one, which nobody had to be told of yet.
            self.lines.check(&link);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.lines.set(self.line, Line::Idle);
        }
    }
}

/// Asks whether a connection still answers.
pub(super) struct Check {
    lines: Arc<Lines>,
    link: Link,
}

impl Check {
    pub(super) fn new(lines: &Arc<Lines>, link: &Link) -> Self {
        Self { lines: lines.clone(), link: link.clone() }
    }

    pub(super) async fn run(mut self) {
        // Any answer will do.
        if let Err(fault) = self.lines.source.is_loaded(&mut self.link.connection).await
            && fault.breaks()
        {
            self.lines.replace(&self.link, &fault);
        }
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.link.trust();
    }
}

/// Returns the pause after so many failures in a row. It doubles each time, and is random, so that a fleet does not
/// reconnect in step.
fn rest(failures: u32) -> Duration {
    jittered(REST.0.saturating_mul(1 << (failures - 1).min(10)).min(REST.1))
}
