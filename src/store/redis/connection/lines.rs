//! Lines to a server: each has a connection, or a task that gets it one.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::attempt::{Attempt, Check};
use super::link::Link;
use super::source::Source;
use crate::store::redis::error::Fault;

#[derive(Debug)]
pub(super) struct Lines {
    pub(super) source: Source,
    lines: watch::Sender<Vec<Line>>,
    /// What is done about each line in the background: an attempt, and a check. Nothing while all
    /// is well.
    /// None once all is over.
    tasks: Mutex<Option<Vec<[Option<AbortHandle>; 2]>>>,
}

#[derive(Debug)]
pub(super) enum Line {
    /// Nobody asked for it, or the runtime is gone that was to open it.
    Idle,
    Open(Link),
    /// An attempt is under way.
    Opening,
    /// The last attempt failed; the next one follows by itself.
    Down(Arc<Fault>),
}

impl Line {
    fn link(&self) -> Option<&Link> {
        match self {
            Self::Open(link) => Some(link),
            _ => None,
        }
    }

    fn fault(&self) -> Option<Fault> {
        match self {
            Self::Down(fault) => Some(Fault::Connect(fault.clone())),
            _ => None,
        }
    }

    fn is_opening(&self) -> bool {
        matches!(self, Self::Opening)
    }
}

impl Lines {
    pub(super) fn new(source: Source, count: usize) -> Arc<Self> {
        let lines = (0..count).map(|_| Line::Idle).collect();
        let tasks = (0..count).map(|_| [None, None]).collect();
        let lines = Arc::new(Self { source, lines: watch::Sender::new(lines), tasks: Mutex::new(Some(tasks)) });
        lines.source.tell(&lines);
        lines
    }

    pub(super) fn count(&self) -> usize {
        self.lines.borrow().len()
    }

    pub(super) fn link(&self, line: usize) -> Option<Link> {
        self.lines.borrow()[line].link().cloned()
    }

    /// The connection whose `turn` it is, if it is sound.
    pub(super) fn sound(&self, turn: usize) -> Option<Link> {
        let lines = self.lines.borrow();
        lines[turn % lines.len()].link().filter(|link| !link.is_suspect()).cloned()
    }

    /// Any connection, sound ones first. If there is none, waits for the attempts that are under
    /// way, but not between attempts.
    pub(super) async fn any(self: &Arc<Self>, turn: usize) -> Result<Link, Fault> {
        self.open(turn % self.count());
        let is_settled =
            |lines: &Vec<Line>| lines.iter().any(|line| line.link().is_some()) || !lines.iter().any(Line::is_opening);
        let mut changes = self.lines.subscribe();
        let lines = changes.wait_for(is_settled).await.map_err(|_| Fault::NoRuntime)?;
        let link = lines.iter().filter_map(Line::link).min_by_key(|link| link.is_suspect());
        link.cloned().ok_or_else(|| lines.iter().find_map(Line::fault).unwrap_or(Fault::NoRuntime))
    }

    /// The connection of one line, when the attempt that is under way has ended.
    pub(super) async fn wait(&self, line: usize) -> Result<Link, Fault> {
        let mut changes = self.lines.subscribe();
        let lines = changes.wait_for(|lines| !lines[line].is_opening()).await.map_err(|_| Fault::NoRuntime)?;
        lines[line].link().cloned().ok_or_else(|| lines[line].fault().unwrap_or(Fault::NoRuntime))
    }

    /// Opens a line that nobody sees to.
    pub(super) fn open(self: &Arc<Self>, line: usize) {
        if self.turn_to(line, Line::Opening, |line| matches!(line, Line::Idle)) {
            self.spawn(line, 0, Attempt::new(self, line).open(0));
        }
    }

    /// Replaces a connection that broke, unless it was replaced already: at once, or after a rest
    /// if it never was of use.
    pub(super) fn replace(self: &Arc<Self>, link: &Link, fault: &Fault) {
        let failures = link.failures();
        let next = if failures == 0 { Line::Opening } else { Line::Down(Arc::new(fault.clone())) };
        if self.turn_to(link.line, next, |line| line.link().is_some_and(|open| open.is(link))) {
            self.spawn(link.line, 0, Attempt::new(self, link.line).open(failures));
        }
    }

    /// Has the script loaded into a server that says it does not know it, unless it is already.
    pub(super) fn reload(self: &Arc<Self>, link: &Link) {
        if self.turn_to(link.line, Line::Opening, |line| line.link().is_some_and(|open| open.is(link))) {
            self.spawn(link.line, 0, Attempt::new(self, link.line).reload(link.clone()));
        }
    }

    /// Has a connection checked, which is replaced if it does not answer.
    pub(super) fn check(self: &Arc<Self>, link: &Link) {
        if link.suspect() {
            self.spawn(link.line, 1, Check::new(self, link).run());
        }
    }

    /// Has all connections checked, as one of them was cut.
    pub(super) fn check_all(self: &Arc<Self>) {
        for line in 0..self.count() {
            if let Some(link) = self.link(line) {
                self.check(&link);
            }
        }
    }

    pub(super) fn set(&self, line: usize, next: Line) {
        self.turn_to(line, next, |_| true);
    }

    fn turn_to(&self, line: usize, next: Line, from: impl Fn(&Line) -> bool) -> bool {
        self.lines.send_if_modified(|lines| {
            let turns = from(&lines[line]);
            if turns {
                lines[line] = next;
            }
            turns
        })
    }

    /// Does something about a line in the background. Where there is no runtime, the line is left
    /// to the next call.
    fn spawn(&self, line: usize, what: usize, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return self.set(line, Line::Idle) };
        // Locked before it is spawned: it may be over, and followed by another, before we go on.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // A check may still be at it while the store is dropped.
        let Some(tasks) = tasks.as_mut() else { return };
        tasks[line][what] = Some(runtime.spawn(task).abort_handle());
    }

    /// Ends all that is done in the background.
    pub(super) fn end(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.take().into_iter().flatten().flatten().flatten().for_each(|task| task.abort());
    }
}
