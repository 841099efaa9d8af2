//! A document that says which limits there are, and changes.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{Limit, LiveRules};

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What a document that has changed says, or why that is nothing.
pub(crate) type News = Result<Vec<Limit>, Box<dyn Error + Send + Sync>>;

/// A document that says which limits there are, and changes.
pub(crate) trait Document: Send + 'static {
    /// Looks at it. Nothing, if it is as it was.
    fn look(&mut self) -> impl Future<Output = Option<News>> + Send;
}

impl LiveRules {
    /// Keeps them at what a document says, by a task that looks at it every second and ends when nobody
    /// goes by them any more.
    pub(crate) fn keep_up(&self, runtime: &Handle, mut document: impl Document) {
        let rules = self.weak();
        let task = runtime.spawn(async move {
            let mut seconds = interval_at(Instant::now() + EVERY, EVERY);
            seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                seconds.tick().await;
                let news = document.look().await;
                let Some(rules) = rules() else { return };
                match news {
                    Some(Ok(limits)) => rules.replace(limits).unwrap_or_else(|error| rules.refuse(&error)),
                    Some(Err(error)) => rules.refuse(&*error),
                    None => {}
                }
            }
        });
        self.keep(task.abort_handle());
    }
}
