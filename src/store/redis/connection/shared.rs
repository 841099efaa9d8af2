//! Opens, checks and replaces the connections of a pool in the background.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::pooled::PooledConnection;
use super::source::Source;
use super::states::{ConnectionState, ConnectionStates};
use crate::store::redis::error::Fault;
use crate::time::jittered;

/// The first pause between two attempts, and the longest, before jitter.
const PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The part of a pool that its background tasks share.
#[derive(Debug)]
pub(super) struct SharedPool {
    pub(super) source: Source,
    pub(super) states: ConnectionStates,
    /// The tasks of each connection. `None` once the pool is closed.
    tasks: Mutex<Option<Vec<Tasks>>>,
}

/// The latest background tasks of a connection.
#[derive(Debug, Default)]
struct Tasks {
    attempt: Option<AbortHandle>,
    check: Option<AbortHandle>,
}

#[derive(Clone, Copy)]
enum TaskKind {
    Attempt,
    Check,
}

impl SharedPool {
    pub(super) fn new(source: Source, count: usize) -> Arc<Self> {
        let tasks = (0..count).map(|_| Tasks::default()).collect();
        let shared = Arc::new(Self { source, states: ConnectionStates::new(count), tasks: Mutex::new(Some(tasks)) });
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
        self.open(turn % self.states.count());
        self.states.any().await
    }

    /// Opens a connection that is idle.
    pub(super) fn open(self: &Arc<Self>, index: usize) {
        if self.states.set_if(index, ConnectionState::Opening, |index| matches!(index, ConnectionState::Idle)) {
            self.spawn(index, TaskKind::Attempt, Attempt::new(self, index).open(0));
        }
    }

    /// Replaces a connection that broke, unless it was replaced already: at once, or after a pause if it broke at once.
    pub(super) fn replace(self: &Arc<Self>, broken: &PooledConnection, fault: &Fault) {
        let failures = broken.failures();
        let next =
            if failures == 0 { ConnectionState::Opening } else { ConnectionState::Down(Arc::new(fault.clone())) };
        if self.states.set_if(broken.index, next, |index| is_open(index, broken)) {
            self.spawn(broken.index, TaskKind::Attempt, Attempt::new(self, broken.index).open(failures));
        }
    }

    /// Loads the script into a server that does not know it, unless this is under way.
    pub(super) fn reload(self: &Arc<Self>, connection: &PooledConnection) {
        if self.states.set_if(connection.index, ConnectionState::Opening, |index| is_open(index, connection)) {
            self.spawn(
                connection.index,
                TaskKind::Attempt,
                Attempt::new(self, connection.index).reload(connection.clone()),
            );
        }
    }

    /// Checks whether a connection still answers, and replaces it if it does not.
    pub(super) fn check(self: &Arc<Self>, connection: &PooledConnection) {
        if connection.mark_suspect() {
            let check = Check { shared: self.clone(), connection: connection.clone() };
            self.spawn(connection.index, TaskKind::Check, check.run());
        }
    }

    /// Checks all connections, because one of them was lost.
    fn check_all(self: &Arc<Self>) {
        for index in 0..self.states.count() {
            if let Some(connection) = self.states.connection(index) {
                self.check(&connection);
            }
        }
    }

    /// Spawns a task of a connection. Outside a runtime, the connection is left to the next call.
    fn spawn(&self, index: usize, kind: TaskKind, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return self.states.set(index, ConnectionState::Idle) };
        // Locked before the task is spawned, which may end, and start another one, before this continues.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // A check may still run while the pool is closed.
        let Some(tasks) = tasks.as_mut() else { return };
        let latest = match kind {
            TaskKind::Attempt => &mut tasks[index].attempt,
            TaskKind::Check => &mut tasks[index].check,
        };
        if let Some(previous) = latest.replace(runtime.spawn(task).abort_handle()) {
            previous.abort();
        }
    }

    /// Ends all background tasks.
    pub(super) fn close(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for Tasks { attempt, check } in tasks.take().into_iter().flatten() {
            attempt.into_iter().chain(check).for_each(|task| task.abort());
        }
    }
}

fn is_open(index: &ConnectionState, connection: &PooledConnection) -> bool {
    index.connection().is_some_and(|open| open.is_same(connection))
}

/// Opens a connection and keeps it in the pool. The connection depends on the runtime of this task: if this is dropped
/// with it, the next call opens another one.
struct Attempt {
    shared: Arc<SharedPool>,
    index: usize,
    opened: Option<PooledConnection>,
}

impl Attempt {
    fn new(shared: &Arc<SharedPool>, index: usize) -> Self {
        Self { shared: shared.clone(), index, opened: None }
    }

    /// Opens a connection, however many attempts that takes: the first at once if there were no `failures`. Then waits
    /// until the task is aborted.
    async fn open(self, mut failures: u32) {
        loop {
            if failures > 0 {
                tokio::time::sleep(pause_after(failures)).await;
                self.shared.states.set(self.index, ConnectionState::Opening);
            }
            let disconnections = self.shared.source.disconnections();
            match self.shared.source.connect().await {
                Ok(connection) => return self.keep(connection, failures, disconnections).await,
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    self.shared.states.set(self.index, ConnectionState::Down(Arc::new(fault)));
                }
            }
        }
    }

    /// Loads the script, or else opens another connection.
    async fn reload(self, mut open: PooledConnection) {
        let failures = open.failures();
        let disconnections = self.shared.source.disconnections();
        match self.shared.source.load(&mut open.connection).await {
            Ok(()) => self.keep(open.connection, failures.saturating_sub(1), disconnections).await,
            Err(fault) => {
                if failures > 0 {
                    self.shared.states.set(self.index, ConnectionState::Down(Arc::new(fault)));
                }
                drop(open);
                self.open(failures).await;
            }
        }
    }

    /// Keeps the connection of an attempt that began after so many `disconnections`.
    async fn keep(mut self, connection: MultiplexedConnection, failures: u32, disconnections: u64) {
        let connection = PooledConnection::new(self.index, connection, failures);
        self.opened = Some(connection.clone());
        self.shared.states.set(self.index, ConnectionState::Open(connection.clone()));
        if self.shared.source.disconnections() != disconnections {
            // It may have been this one, which was not in the pool yet.
            self.shared.check(&connection);
        }
        drop(connection);
        pending().await
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let is_current = |state: &ConnectionState| self.opened.as_ref().is_none_or(|opened| is_open(state, opened));
        self.shared.states.set_if(self.index, ConnectionState::Idle, is_current);
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
