//! The connections to one server: few, shared, replaced when they break.

mod attempt;
mod lines;
mod link;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deadpool_redis::redis::{Cmd, ErrorKind, ServerErrorKind, Value};

use self::lines::Lines;
use self::link::Link;
pub(super) use self::source::{Source, settings};
use super::error::Fault;
use super::script::{self, Replies, Request};

/// How often a call is sent at most, to servers that say that they do not know the script: more than twice only if it
/// is flushed again and again.
const TRIES: u32 = 3;

/// Connections to one server, on which the script is loaded. Those who clone a connection share it,
/// with any number of calls at a time.
#[derive(Debug)]
pub(super) struct Connections {
    lines: Arc<Lines>,
    turn: AtomicUsize,
}

impl Connections {
    /// As many connections as `count`, which are opened when they are called for.
    pub(super) fn new(source: Source, count: usize) -> Self {
        Self { lines: Lines::new(source, count), turn: AtomicUsize::new(0) }
    }

    /// Opens all, and waits for the first attempt of each.
    ///
    /// # Errors
    ///
    /// When the first can't be opened.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        self.lines.open(0);
        self.lines.wait(0).await?;
        self.open_in_background();
        for line in 1..self.lines.count() {
            // There is a connection; the others are seen to in the background.
            let _ = self.lines.wait(line).await;
        }
        Ok(())
    }

    /// Opens all in the background, where there is a runtime: elsewhere, calls do.
    pub(super) fn open_in_background(&self) {
        (0..self.lines.count()).for_each(|line| self.lines.open(line));
    }

    /// Has the script decide `requests`. A call is never sent twice, unless the server said that it
    /// did not run because it does not know the script.
    pub(super) async fn call(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        self.decide(clock, requests, false).await
    }

    /// Like [`call`](Self::call), for keys that another master of a Cluster is moving to this one.
    pub(super) async fn call_asking(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        self.decide(clock, requests, true).await
    }

    async fn decide(&self, clock: &[u8], requests: &[Request], asking: bool) -> Result<Replies, Fault> {
        let mut link = self.link().await?;
        for _ in 0..TRIES {
            let call = script::evalsha(self.lines.source.hash(), clock, requests);
            let reply = match asking {
                false => link.send(&call, &self.lines).await,
                // Boxed, or else all others would have room for it.
                true => Box::pin(link.send_asking(&call, &self.lines)).await,
            };
            if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
                self.lines.reload(&link);
                link = self.lines.wait(link.line).await?;
                continue;
            }
            let replies = reply.map_err(Fault::from).and_then(|reply| Replies::parse(reply, requests.len()));
            let broken = match &replies {
                Ok(replies) => replies.replies.iter().filter_map(|found| found.as_ref().err()).find(|it| it.breaks()),
                Err(fault) => Some(fault).filter(|it| it.breaks()),
            };
            match broken {
                Some(fault) => self.lines.replace(&link, fault),
                None => link.prove(),
            }
            return replies;
        }
        Err(Fault::Reply("again and again that it does not know the script that was just loaded"))
    }

    /// Has the server answer something else.
    pub(super) async fn query(&self, query: &Cmd) -> Result<Value, Fault> {
        let mut link = self.link().await?;
        let reply = link.send(query, &self.lines).await.map_err(Fault::from);
        match &reply {
            Err(fault) if fault.breaks() => self.lines.replace(&link, fault),
            _ => link.prove(),
        }
        reply
    }

    /// A connection: the next in turn, or else another one that is sound; if there is none, the one
    /// that an attempt under way opens.
    async fn link(&self) -> Result<Link, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match self.lines.sound(turn) {
            Some(link) => Ok(link),
            None => self.lines.any(turn).await,
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.lines.end();
    }
}
