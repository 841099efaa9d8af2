//! Reads and watches rules files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Rules;
use super::error::RulesError;
use super::extractors::Extractors;
use super::yaml;
use crate::limit::{Apply, Document, LiveLimits};

/// The time for which a file must stay unchanged before it is used, because it may be written in several steps.
const SETTLE_TIME: Duration = Duration::from_millis(50);

impl Rules {
    /// Reads a file. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be read, or is invalid as for [`from_yaml`](Self::from_yaml).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, RulesError> {
        let file: Arc<Path> = path.as_ref().into();
        Self::read(&read(&file)?, Some(file))
    }

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
        let rules = Self::load(&text, Some(file.clone()), &extractors, LiveLimits::try_new)?;
        rules.spawn_watcher(&runtime, WatchedFile { file, extractors, seen: Ok(text) });
        Ok(rules)
    }
}

/// A file, and its last known contents, or the reason why it can't be read.
struct WatchedFile {
    file: Arc<Path>,
    extractors: Extractors,
    seen: Result<String, RulesError>,
}

impl WatchedFile {
    /// Reads the file on a blocking thread, since it may have millions of bytes.
    async fn read(&self) -> Option<Result<String, RulesError>> {
        let file = self.file.clone();
        tokio::task::spawn_blocking(move || read(&file)).await.ok()
    }
}

impl Document for WatchedFile {
    async fn poll_change(&mut self) -> Option<Apply> {
        let found = self.read().await.filter(|found| *found != self.seen)?;
        tokio::time::sleep(SETTLE_TIME).await;
        self.seen = self.read().await.filter(|settled| *settled == found)?;
        let (file, extractors) = (self.file.clone(), self.extractors.clone());
        Some(Box::new(move |live| Ok(Rules::load(&found?, Some(file), &extractors, |limits| live.replace(limits))?)))
    }
}

/// Reads a regular file. Does not open pipes and devices, which could block.
fn read(file: &Arc<Path>) -> Result<String, RulesError> {
    let read = || {
        let kind = fs::metadata(file)?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "a folder" } else { "a pipe or a device" };
            return Err(io::Error::other(format!("it is {what}: use a regular file, or a link to one")));
        }
        // One byte more than the maximum, because the file may have grown.
        let mut text = String::new();
        File::open(file)?.take(yaml::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| RulesError::for_file(Some(file.clone()), format!("the file can't be read: {error}")))
}
