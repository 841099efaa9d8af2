//! Events as texts.

use std::sync::{Arc, Mutex};

use tower_ratelimit::Event;

/// The reported lockouts (`limit level span`), uses of overage (`over limit remaining`), denials by limits in shadow mode
/// (`shadow limit`), and errors of the store. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct EventLog(Arc<Mutex<Vec<String>>>);

impl EventLog {
    /// Returns an observer that adds the events of a limiter.
    pub fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let log = self.clone();
        move |event| {
            let text = match event {
                Event::PenaltyBegan { limit, level, span, .. } => format!("{limit} {level} {span:?}"),
                Event::OverageUsed { limit, outcome, .. } => format!("over {limit} {}", outcome.remaining()),
                Event::ShadowDenied { limit, .. } => format!("shadow {limit}"),
                Event::StoreFailed { error, .. } => error.to_string(),
                _ => return,
            };
            log.0.lock().unwrap().push(text);
        }
    }

    /// Returns the events since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
