//! Limits that follow a document.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::live::Retired;
use super::{Limit, LiveLimits};

/// How often a document is read.
const EVERY: Duration = Duration::from_secs(1);

/// The limits of a document that has changed, or what is wrong with it.
pub(crate) type News = Result<Vec<Limit>, Box<dyn Error + Send + Sync>>;

/// Parses a document that has changed. It may take long, so it runs on a blocking thread.
pub(crate) type Parse = Box<dyn FnOnce() -> News + Send>;

/// A document that says which limits there are, and changes.
pub(crate) trait Document: Send + 'static {
    /// Reads it, and returns how to parse it. `None` if it has not changed.
    fn look(&mut self) -> impl Future<Output = Option<Parse>> + Send;
}

impl LiveLimits {
    /// Keeps the limits as a document says, by a task that reads it every second and ends when nobody uses the limits
    /// any more.
    pub(crate) fn keep_up(&self, runtime: &Handle, mut document: impl Document) {
        let rules = self.weak();
        let task = runtime.spawn(async move {
            let mut seconds = interval_at(Instant::now() + EVERY, EVERY);
            seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut retired: Vec<Retired> = Vec::new();
            loop {
                seconds.tick().await;
                let changed = document.look().await;
                let Some(rules) = rules() else { return };
                if changed.is_none() && !retired.iter().any(is_unused) {
                    continue;
                }
                let update = spawn_blocking(move || {
                    drop_unused(&mut retired);
                    if let Some(parse) = changed {
                        retired.extend(rules.take_up(parse()));
                    }
                    retired
                });
                retired = match update.await {
                    Ok(retired) => retired,
                    // An observer has panicked: the next document may be taken up all the same.
                    Err(error) if error.is_panic() => Vec::new(),
                    Err(_) => return,
                };
            }
        });
        self.keep(task.abort_handle());
    }

    /// Replaces the limits by those of a document, or reports what is wrong with it. Returns what is no longer in use.
    fn take_up(&self, news: News) -> Vec<Retired> {
        match news.and_then(|limits| Ok(self.replace_retaining(limits)?)) {
            Ok(retired) => retired,
            Err(error) => {
                self.refuse(&*error);
                Vec::new()
            }
        }
    }
}

fn is_unused(retired: &Retired) -> bool {
    Arc::strong_count(retired) == 1
}

/// Drops what no request uses any more: thousands of limits take milliseconds, for which no request should wait.
fn drop_unused(retired: &mut Vec<Retired>) {
    retired.retain(|retired| !is_unused(retired));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::limit::{Following, Set};

    /// A document that changes once, and takes until `parse` returns to be parsed.
    struct Changed<P>(Option<P>);

    impl<P: FnOnce() -> News + Send + 'static> Document for Changed<P> {
        async fn look(&mut self) -> Option<Parse> {
            Some(Box::new(self.0.take()?))
        }
    }

    /// Tells which thread drops it.
    struct Dropped(mpsc::Sender<ThreadId>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    fn dropped(to: &mpsc::Sender<ThreadId>, _: &Arc<Set>) -> Dropped {
        Dropped(to.clone())
    }

    /// On a runtime of one thread, nothing else would run if that thread parsed.
    #[tokio::test]
    async fn other_tasks_run_while_a_document_is_parsed() {
        let rules = LiveLimits::new([]);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (proceed, may_proceed) = mpsc::channel();
        let (done, is_done) = tokio::sync::oneshot::channel();
        let parse = move || {
            begun.send(()).expect("a task that waits");
            let outcome = may_proceed.recv_timeout(Duration::from_secs(60));
            done.send((outcome, thread::current().id())).expect("a test that waits");
            Ok(Vec::new())
        };
        rules.keep_up(&Handle::current(), Changed(Some(parse)));
        has_begun.await.expect("parsing begins");
        proceed.send(()).expect("parsing goes on");
        let (outcome, parser) = is_done.await.expect("parsing ends");
        assert_eq!(outcome, Ok(()), "no other task ran meanwhile");
        assert_ne!(parser, thread::current().id());
    }

    #[tokio::test]
    async fn a_retired_snapshot_is_dropped_off_the_runtime_even_if_a_request_used_it_last() {
        let rules = LiveLimits::new([]);
        let (tell, told) = mpsc::channel();
        let base = Arc::new(tell);
        let following = Following::new(rules.clone());
        let request = following.present(&base, dropped);
        let (replaced, is_replaced) = tokio::sync::oneshot::channel();
        let replaced = std::sync::Mutex::new(Some(replaced));
        let rules = rules.observe(move |_| {
            let _ = replaced.lock().expect("no panic").take().map(|replaced| replaced.send(()));
        });
        rules.keep_up(&Handle::current(), Changed(Some(|| Ok(Vec::new()))));
        is_replaced.await.expect("a replacement");
        assert!(told.try_recv().is_err(), "the request still uses it");
        drop(request);
        let dropper = loop {
            match told.try_recv() {
                Ok(dropper) => break dropper,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_ne!(dropper, thread::current().id());
    }
}
