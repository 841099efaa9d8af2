//! Opens, checks and replaces the connections of a pool in the background.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::pooled::PooledConnection;
use super::slots::{Slot, Slots};
use super::source::Source;
use crate::store::redis::error::Fault;
use crate::time::jittered;

/// The first pause between two attempts, and the longest, before jitter.
const PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The part of a pool that its background tasks share.
#[derive(Debug)]
pub(super) struct SharedPool {
    pub(super) source: Source,
    pub(super) slots: Slots,
    /// The attempt and the check of each slot. `None` once the pool is closed.
    tasks: Mutex<Option<Vec<[Option<AbortHandle>; 2]>>>,
}

/// Indexes into the tasks of a slot.
const ATTEMPT: usize = 0;
const CHECK: usize = 1;

impl SharedPool {
    pub(super) fn new(source: Source, count: usize) -> Arc<Self> {
        let tasks = (0..count).map(|_| [None, None]).collect();
        let shared = Arc::new(Self { source, slots: Slots::new(count), tasks: Mutex::new(Some(tasks)) });
        let weak = Arc::downgrade(&shared);
        shared.source.on_disconnection(move || {
            if let Some(shared) = weak.upgrade() {
                shared.check_all();
            }
        });
        shared
    }

    /// Returns any connection. Opens the one whose `turn` it is, unless it is open.
    pub(super) async fn any(self: &Arc<Self>, turn: usize) -> Result<PooledConnection, Fault> {
        self.open(turn % self.slots.count());
        self.slots.any().await
    }

    /// Opens the connection of an idle slot.
    pub(super) fn open(self: &Arc<Self>, slot: usize) {
        if self.slots.set_if(slot, Slot::Opening, |slot| matches!(slot, Slot::Idle)) {
            self.spawn(slot, ATTEMPT, Attempt::new(self, slot).open(0));
        }
    }

    /// Replaces a connection that broke, unless it was replaced already: at once, or after a pause if it broke at once.
    pub(super) fn replace(self: &Arc<Self>, broken: &PooledConnection, fault: &Fault) {
        let failures = broken.failures();
        let next = if failures == 0 { Slot::Opening } else { Slot::Down(Arc::new(fault.clone())) };
        if self.slots.set_if(broken.slot, next, |slot| is_open(slot, broken)) {
            self.spawn(broken.slot, ATTEMPT, Attempt::new(self, broken.slot).open(failures));
        }
    }

    /// Loads the script into a server that does not know it, unless this is under way.
    pub(super) fn reload(self: &Arc<Self>, connection: &PooledConnection) {
        if self.slots.set_if(connection.slot, Slot::Opening, |slot| is_open(slot, connection)) {
            self.spawn(connection.slot, ATTEMPT, Attempt::new(self, connection.slot).reload(connection.clone()));
        }
    }

    /// Checks whether a connection still answers, and replaces it if it does not.
    pub(super) fn check(self: &Arc<Self>, connection: &PooledConnection) {
        if connection.mark_suspect() {
            let check = Check { shared: self.clone(), connection: connection.clone() };
            self.spawn(connection.slot, CHECK, check.run());
        }
    }

    /// Checks all connections, because one of them was lost.
    fn check_all(self: &Arc<Self>) {
        for slot in 0..self.slots.count() {
            if let Some(connection) = self.slots.connection(slot) {
                self.check(&connection);
            }
        }
    }

    /// Spawns a task of a slot. Outside a runtime, the slot is left to the next call.
    fn spawn(&self, slot: usize, kind: usize, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return self.slots.set(slot, Slot::Idle) };
        // Locked before the task is spawned, which may end, and start another one, before this continues.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // A check may still run while the pool is closed.
        let Some(tasks) = tasks.as_mut() else { return };
        tasks[slot][kind] = Some(runtime.spawn(task).abort_handle());
    }

    /// Ends all background tasks.
    pub(super) fn close(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.take().into_iter().flatten().flatten().flatten().for_each(|task| task.abort());
    }
}

fn is_open(slot: &Slot, connection: &PooledConnection) -> bool {
    slot.connection().is_some_and(|open| open.is_same(connection))
}

/// Attempts to open the connection of a slot. If it is dropped before it succeeds, for instance with its runtime, the
/// slot is left to the next call.
struct Attempt {
    shared: Arc<SharedPool>,
    slot: usize,
    is_over: bool,
}

impl Attempt {
    fn new(shared: &Arc<SharedPool>, slot: usize) -> Self {
        Self { shared: shared.clone(), slot, is_over: false }
    }

    /// Opens a connection, however many attempts that takes: the first at once if there were no `failures`.
    async fn open(self, mut failures: u32) {
        loop {
            if failures > 0 {
                tokio::time::sleep(pause_after(failures)).await;
                self.shared.slots.set(self.slot, Slot::Opening);
            }
            let disconnections = self.shared.source.disconnections();
            match self.shared.source.connect().await {
                Ok(connection) => return self.succeed(connection, failures, disconnections),
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    self.shared.slots.set(self.slot, Slot::Down(Arc::new(fault)));
                }
            }
        }
    }

    /// Loads the script, or else opens another connection.
    async fn reload(self, mut open: PooledConnection) {
        let failures = open.failures();
        let disconnections = self.shared.source.disconnections();
        match self.shared.source.load(&mut open.connection).await {
            Ok(()) => self.succeed(open.connection, failures.saturating_sub(1), disconnections),
            Err(fault) => {
                if failures > 0 {
                    self.shared.slots.set(self.slot, Slot::Down(Arc::new(fault)));
                }
                drop(open);
                self.open(failures).await;
            }
        }
    }

    /// Ends an attempt that began after so many `disconnections`.
    fn succeed(mut self, connection: MultiplexedConnection, failures: u32, disconnections: u64) {
        self.is_over = true;
        let connection = PooledConnection::new(self.slot, connection, failures);
        self.shared.slots.set(self.slot, Slot::Open(connection.clone()));
        if self.shared.source.disconnections() != disconnections {
            // It may have been this one, which was not yet in its slot.
            self.shared.check(&connection);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.slots.set(self.slot, Slot::Idle);
        }
    }
}

/// Checks whether a connection still answers.
struct Check {
    shared: Arc<SharedPool>,
    connection: PooledConnection,
}

impl Check {
    async fn run(mut self) {
        // Any reply shows that the connection works.
        if let Err(fault) = self.shared.source.is_loaded(&mut self.connection.connection).await
            && fault.breaks()
        {
            self.shared.replace(&self.connection, &fault);
        }
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.connection.clear_suspicion();
    }
}

/// Returns the pause after so many failures, which doubles each time.
fn pause_after(failures: u32) -> Duration {
    jittered(PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(MAX_PAUSE))
}
