//! Watches a rules file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Rules;
use super::extractors::Extractors;
use super::file::read;
use super::problem::RulesError;
use crate::limit::{Apply, Document, LiveLimits};

/// The time for which a file must stay unchanged before it is used, because it may be written in several steps.
const SETTLE_TIME: Duration = Duration::from_millis(50);

impl Rules {
    /// Reads limits from a file, and replaces them within about a second when it changes.
    ///
    /// ```no_run
    /// use tower_ratelimit::RateLimitLayer;
    /// use tower_ratelimit::rules::{Extractors, Rules};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = Rules::watch("limits.yaml", Extractors::new())?;
    /// let limits = RateLimitLayer::live_builder(&rules).try_build()?;
    /// # let _ = limits;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The first read blocks. Then the file is read every second in the background, for as long as the limits are in
    /// use. Changes are detected by content, so that none is missed if the file is written in place, replaced by
    /// another, or switched by a symbolic link (as Kubernetes does).
    ///
    /// An invalid or missing file changes nothing. It is reported once until its content changes: as an
    /// [`Event::LimitsRejected`](crate::Event::LimitsRejected) to [observers](LiveLimits::observe) of the limits, and
    /// as an error in the log with the feature `tracing`.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the file is invalid,
    /// - the file can't be read or is not a regular file,
    /// - more than 64 limits may apply to one request, or
    /// - there is no Tokio runtime.
    pub fn watch(path: impl AsRef<Path>, extractors: Extractors) -> Result<LiveLimits, RulesError> {
        let file: Arc<Path> = path.as_ref().into();
        let runtime = Handle::try_current().map_err(|_| {
            let message = "there is no Tokio runtime to watch the file in: call this from within one";
            RulesError::for_file(Some(file.clone()), message)
        })?;
        let text = read(&file)?;
        let rules = Self::read(&text, Some(file.clone()))?.live(&extractors)?;
        rules.spawn_watcher(&runtime, WatchedFile { file, extractors, seen: Arc::new(Ok(text)) });
        Ok(rules)
    }
}

/// A file, and its last known contents.
struct WatchedFile {
    file: Arc<Path>,
    extractors: Extractors,
    seen: Arc<Contents>,
}

type Contents = Result<String, RulesError>;

impl WatchedFile {
    /// Reads the file, and compares it with `other` on the same blocking thread, since it may have millions of bytes.
    async fn read(&self, other: &Arc<Contents>) -> Option<(Contents, bool)> {
        let (file, other) = (self.file.clone(), other.clone());
        let read = move || {
            let contents = read(&file);
            let is_same = contents == *other;
            (contents, is_same)
        };
        tokio::task::spawn_blocking(read).await.ok()
    }
}

impl Document for WatchedFile {
    async fn poll_change(&mut self) -> Option<Apply> {
        let (found, is_known) = self.read(&self.seen).await?;
        if is_known {
            return None;
        }
        let found = Arc::new(found);
        tokio::time::sleep(SETTLE_TIME).await;
        let (_, is_settled) = self.read(&found).await?;
        if !is_settled {
            return None;
        }
        self.seen = found.clone();
        let (file, extractors) = (self.file.clone(), self.extractors.clone());
        Some(Box::new(move |live| {
            let text = found.as_ref().as_ref().map_err(Clone::clone)?;
            Ok(Rules::read(text, Some(file))?.replace(live, &extractors)?)
        }))
    }
}
