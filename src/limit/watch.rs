//! Live limits that follow a document, such as a file.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::live::LiveLimits;
use super::snapshot::Retired;

/// The interval at which a document is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Parses a document that has changed, and replaces the limits. Returns the configurations that were in use before.
/// Runs on a blocking thread, because large documents take long.
pub(crate) type Apply = Box<dyn FnOnce(&LiveLimits) -> Result<Vec<Retired>, Box<dyn Error + Send + Sync>> + Send>;

/// A document that defines limits and changes at runtime.
pub(crate) trait Document: Send + 'static {
    /// Reads the document. If it has changed since the last call, returns a closure that applies the change.
    fn poll_change(&mut self) -> impl Future<Output = Option<Apply>> + Send;
}

impl LiveLimits {
    /// Spawns a task that reads `document` every second and replaces the limits when it has changed. The task ends when
    /// the limits are dropped.
    pub(crate) fn spawn_watcher(&self, runtime: &Handle, mut document: impl Document) {
        let limits = self.weak();
        let task = runtime.spawn(async move {
            let mut interval = interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut retired: Vec<Retired> = Vec::new();
            loop {
                interval.tick().await;
                let changed = document.poll_change().await;
                let Some(limits) = limits() else { return };
                if changed.is_none() && !retired.iter().any(is_unused) {
                    continue;
                }
                let update = spawn_blocking(move || {
                    drop_unused(&mut retired);
                    if let Some(apply) = changed {
                        retired.extend(limits.apply(apply));
                    }
                    retired
                });
                retired = match update.await {
                    Ok(retired) => retired,
                    // An extractor of the rules or a recorder has panicked. Later documents can still be applied.
                    Err(error) if error.is_panic() => {
                        #[cfg(feature = "tracing")]
                        tracing::error!(%error, "replacing the rate limits panicked: the limits in force may be the previous ones");
                        Vec::new()
                    }
                    Err(_) => return,
                };
            }
        });
        self.add_watcher(task.abort_handle());
    }

    /// Applies a document, or reports that it is invalid. Returns the configurations that were in use before.
    fn apply(&self, apply: Apply) -> Vec<Retired> {
        apply(self).unwrap_or_else(|error| {
            self.report_rejected(&*error);
            Vec::new()
        })
    }
}

fn is_unused(retired: &Retired) -> bool {
    Arc::strong_count(retired) == 1
}

/// Drops configurations that no request uses any more. Takes milliseconds for thousands of limits, so no request should
/// wait for it.
fn drop_unused(retired: &mut Vec<Retired>) {
    retired.retain(|retired| !is_unused(retired));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::limit::{Derived, LimitsSnapshot};

    /// A document that changes once. `parse` runs before it is applied.
    struct Changed<P>(Option<P>);

    impl<P: FnOnce() + Send + 'static> Document for Changed<P> {
        async fn poll_change(&mut self) -> Option<Apply> {
            let parse = self.0.take()?;
            Some(Box::new(move |limits| {
                parse();
                Ok(limits.replace_retaining([])?)
            }))
        }
    }

    /// Reports the thread that drops it.
    struct Dropped(mpsc::Sender<ThreadId>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    fn dropped(to: &mpsc::Sender<ThreadId>, _: &Arc<LimitsSnapshot>) -> Dropped {
        Dropped(to.clone())
    }

    #[tokio::test]
    async fn other_tasks_run_while_a_document_is_parsed() {
        let limits = LiveLimits::new([]);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (proceed, may_proceed) = mpsc::channel();
        let (done, is_done) = tokio::sync::oneshot::channel();
        let parse = move || {
            begun.send(()).expect("a task that waits");
            let outcome = may_proceed.recv_timeout(Duration::from_secs(60));
            done.send((outcome, thread::current().id())).expect("a test that waits");
        };
        limits.spawn_watcher(&Handle::current(), Changed(Some(parse)));
        has_begun.await.expect("parsing begins");
        proceed.send(()).expect("parsing goes on");
        let (outcome, parser) = is_done.await.expect("parsing ends");
        assert_eq!(outcome, Ok(()), "no other task ran during parsing");
        assert_ne!(parser, thread::current().id());
    }

    #[tokio::test]
    async fn a_retired_snapshot_is_dropped_off_the_runtime_even_if_a_request_used_it_last() {
        let limits = LiveLimits::new([]);
        let (sender, receiver) = mpsc::channel();
        let base = Arc::new(sender);
        let derived = Derived::new(limits.clone());
        let request = derived.get(&base, dropped);
        let (replaced, is_replaced) = tokio::sync::oneshot::channel();
        let replaced = std::sync::Mutex::new(Some(replaced));
        let limits = limits.observe(move |_| {
            let _ = replaced.lock().expect("no panic").take().map(|replaced| replaced.send(()));
        });
        limits.spawn_watcher(&Handle::current(), Changed(Some(|| ())));
        is_replaced.await.expect("a replacement");
        assert!(receiver.try_recv().is_err(), "the request still uses it");
        drop(request);
        let dropper = loop {
            match receiver.try_recv() {
                Ok(dropper) => break dropper,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_ne!(dropper, thread::current().id());
    }
}
