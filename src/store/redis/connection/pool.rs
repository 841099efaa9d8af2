//! The connections to one server, as callers see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, pipe};

use super::pooled::PooledConnection;
use super::shared::SharedPool;
use super::source::Source;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{self, Replies, Request};

/// The most times that a call is sent if the server does not know the script: more than twice only if the script is
/// flushed repeatedly.
const MAX_SENDS: u32 = 3;

/// A pool of connections to one server that has loaded the script. Concurrent calls share each connection.
#[derive(Debug)]
pub(in crate::store::redis) struct ConnectionPool {
    shared: Arc<SharedPool>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Creates a pool of `count` connections, which are opened when they are needed.
    pub(in crate::store::redis) fn new(source: Source, count: usize) -> Self {
        Self { shared: SharedPool::new(source, count), next: AtomicUsize::new(0) }
    }

    /// Opens all connections, and waits for the first attempt of each.
    ///
    /// # Errors
    ///
    /// Returns an error if the first connection can't be opened.
    pub(in crate::store::redis) async fn open(&self) -> Result<(), Fault> {
        self.shared.open(0);
        self.shared.states.wait(0).await?;
        self.open_in_background();
        for index in 1..self.shared.states.count() {
            // One connection is enough; the others are retried in the background.
            let _ = self.shared.states.wait(index).await;
        }
        Ok(())
    }

    /// Opens all connections in the background. Outside a Tokio runtime, calls open them.
    pub(in crate::store::redis) fn open_in_background(&self) {
        (0..self.shared.states.count()).for_each(|index| self.shared.open(index));
    }

    /// Has the script perform `requests`. A call is sent again only if the server replied that it does not know the
    /// script.
    pub(in crate::store::redis) async fn call(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        self.send(clock, requests, false).await
    }

    /// Like [`call`](Self::call), for keys that another master of a Cluster is migrating to this one.
    pub(in crate::store::redis) async fn call_asking(
        &self,
        clock: &[u8],
        requests: &[Request],
    ) -> Result<Replies, Fault> {
        self.send(clock, requests, true).await
    }

    async fn send(&self, clock: &[u8], requests: &[Request], asking: bool) -> Result<Replies, Fault> {
        let mut connection = self.connection().await?;
        for _ in 0..MAX_SENDS {
            let call = script::evalsha(self.shared.source.hash(), clock, requests);
            let reply = if asking {
                // Boxed, because this future is larger than that of other calls.
                Box::pin(InFlightGuard::send_asking(&mut connection, &call, &self.shared)).await
            } else {
                InFlightGuard::send(&mut connection, &call, &self.shared).await
            };
            if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
                self.shared.reload(&connection);
                connection = self.shared.states.wait(connection.index).await?;
                continue;
            }
            let replies = reply.map_err(Fault::from).and_then(|reply| Replies::parse(reply, requests.len()));
            let broken = match &replies {
                Ok(replies) => replies.replies.iter().filter_map(|found| found.as_ref().err()).find(|it| it.breaks()),
                Err(fault) => Some(fault).filter(|it| it.breaks()),
            };
            match broken {
                Some(fault) => self.shared.replace(&connection, fault),
                None => connection.mark_proven(),
            }
            return replies;
        }
        Err(Fault::Flushed)
    }

    /// Sends another command. With `asking`, its key may be one that another master of a Cluster is migrating to this one.
    pub(in crate::store::redis) async fn query(&self, query: &Cmd, asking: bool) -> Result<Value, Fault> {
        let mut connection = self.connection().await?;
        let reply = if asking {
            InFlightGuard::send_asking(&mut connection, query, &self.shared).await
        } else {
            InFlightGuard::send(&mut connection, query, &self.shared).await
        };
        let reply = reply.map_err(Fault::from);
        match &reply {
            Err(fault) if fault.breaks() => self.shared.replace(&connection, fault),
            _ => connection.mark_proven(),
        }
        reply
    }

    /// Returns the next connection in turn. If that is not healthy, returns another one, or waits for one that is being
    /// opened.
    async fn connection(&self) -> Result<PooledConnection, Fault> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        match self.shared.states.healthy(turn) {
            Some(connection) => Ok(connection),
            None => self.shared.any(turn).await,
        }
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// A call in flight. If it is dropped before its reply, its connection is checked, because it may have lost its peer.
struct InFlightGuard<'a> {
    shared: &'a Arc<SharedPool>,
    connection: PooledConnection,
    is_answered: bool,
}

impl<'a> InFlightGuard<'a> {
    fn new(connection: &PooledConnection, shared: &'a Arc<SharedPool>) -> Self {
        Self { shared, connection: connection.clone(), is_answered: false }
    }

    async fn send(
        connection: &mut PooledConnection,
        command: &Cmd,
        shared: &Arc<SharedPool>,
    ) -> Result<Value, RedisError> {
        let mut guard = InFlightGuard::new(connection, shared);
        let reply = command.query_async(&mut connection.connection).await;
        guard.is_answered = true;
        reply
    }

    /// Sends `ASKING` first, which applies to the next command on its connection.
    async fn send_asking(
        connection: &mut PooledConnection,
        command: &Cmd,
        shared: &Arc<SharedPool>,
    ) -> Result<Value, RedisError> {
        let mut both = pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut guard = InFlightGuard::new(connection, shared);
        let replies = connection.connection.send_packed_commands(&both, 0, 2).await;
        guard.is_answered = true;
        // If `ASKING` fails, the second reply is only a redirection.
        let replies: Result<Vec<_>, _> = replies?.into_iter().map(Value::extract_error).collect();
        Ok(replies?.pop().unwrap_or(Value::Nil))
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let current = self.shared.states.connection(self.connection.index);
        if let Some(connection) = current.filter(|current| current.is_same(&self.connection)) {
            self.shared.check(&connection);
        }
    }
}
