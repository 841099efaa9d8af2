//! Live limits that follow a document, such as a file.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::live::LiveLimits;
use crate::recorder::Event;

/// The interval at which a document is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Parses a document that has changed, and replaces the limits. Runs on a blocking thread, because large documents take
/// long.
pub(crate) type Apply = Box<dyn FnOnce(&LiveLimits) -> Result<(), Box<dyn Error + Send + Sync>> + Send>;

/// A document that defines limits and changes at runtime.
pub(crate) trait Document: Send + 'static {
    /// Reads the document. If it has changed since the last call, returns a closure that applies the change.
    fn poll_change(&mut self) -> impl Future<Output = Option<Apply>> + Send;
}

impl LiveLimits {
    /// Spawns a task that reads `document` every second and replaces the limits when it has changed. The task ends when
    /// the limits are dropped.
    pub(crate) fn spawn_watcher(&self, runtime: &Handle, mut document: impl Document) {
        let limits = Arc::downgrade(&self.inner);
        let task = runtime.spawn(async move {
            let mut interval = interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                interval.tick().await;
                let Some(apply) = document.poll_change().await else { continue };
                let Some(limits) = limits.upgrade().map(|inner| Self { inner }) else { return };
                match spawn_blocking(move || apply(&limits).unwrap_or_else(|error| limits.report_rejected(&*error)))
                    .await
                {
                    Ok(()) => {}
                    // An extractor of the rules or a recorder has panicked. Later documents can still be applied.
                    Err(error) if error.is_panic() => {
                        #[cfg(feature = "tracing")]
                        tracing::error!(
                            %error,
                            "replacing the rate limits panicked: the limits in force may be the previous ones"
                        );
                    }
                    Err(_) => return,
                }
            }
        });
        self.state().watchers.push(task.abort_handle());
    }

    /// Reports a rejected document.
    fn report_rejected(&self, error: &(dyn Error + 'static)) {
        #[cfg(feature = "tracing")]
        tracing::error!(error = one_line(error), "invalid rate limits were rejected: the previous ones stay in force");
        let recorders = self.state().recorders.clone();
        recorders.iter().for_each(|recorder| recorder.event(&Event::LimitsRejected { error }));
    }
}

/// Joins the lines of an error, so that it is one line in the log.
#[cfg(feature = "tracing")]
fn one_line(error: &(dyn Error + 'static)) -> String {
    error.to_string().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A document that changes once. `parse` runs before it is applied.
    struct Changed<P>(Option<P>);

    impl<P: FnOnce() + Send + 'static> Document for Changed<P> {
        async fn poll_change(&mut self) -> Option<Apply> {
            let parse = self.0.take()?;
            Some(Box::new(move |limits| {
                parse();
                Ok(limits.replace([])?)
            }))
        }
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

    #[cfg(feature = "tracing")]
    #[test]
    fn errors_of_several_lines_are_one_line_in_the_log() {
        let error: Box<dyn Error> = "1:1: this\n2:1: that".into();
        assert_eq!(one_line(&*error), "1:1: this; 2:1: that");
    }
}
