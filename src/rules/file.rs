//! A file that is watched.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::extractors::Extractors;
use super::problem::RulesError;
use super::{Rules, yaml};
use crate::limit::{Document, LiveRules, News};

/// For how long a file has to stay as it is: whoever writes into it writes one part after the other.
const SETTLED: Duration = Duration::from_millis(50);

/// The text of a file.
pub(super) fn read(file: &Arc<Path>) -> Result<String, RulesError> {
    // One byte more than can be too many: some files never end.
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(yaml::LONGEST as u64 + 1).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(RulesError::of_all(Some(file.clone()), format!("the file can't be read: {error}"))),
    }
}

impl Rules {
    /// The limits of a file, which are replaced when it changes: within about a second.
    ///
    /// ```no_run
    /// use tower_ratelimit::RateLimitLayer;
    /// use tower_ratelimit::rules::{Extractors, Rules};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = Rules::watch("limits.yaml", Extractors::new())?;
    /// let limits = RateLimitLayer::by_rules(&rules);
    /// # let _ = limits;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It is read now, which blocks, and then every second in the background, for as long as anyone goes by the
    /// rules. What is read is compared, not when the file was changed: that misses nothing, whether the file is
    /// written, replaced by another of its name, or behind symbolic links of which one is
    /// switched (as Kubernetes does), and needs nothing of the file system.
    ///
    /// A file that is wrong, or gone, changes nothing: [`Event::RulesRefused`](crate::Event::RulesRefused) tells
    /// those who [observe](LiveRules::observe) the rules, and with the feature `tracing` it is an error in the
    /// log; once, until it says something else.
    ///
    /// # Errors
    ///
    /// With all that is wrong with the file, and where it can't be read; when more than 64 limits may apply to one
    /// request; and outside a Tokio runtime.
    pub fn watch(path: impl AsRef<Path>, extractors: Extractors) -> Result<LiveRules, RulesError> {
        let file: Arc<Path> = path.as_ref().into();
        let runtime = Handle::try_current().map_err(|_| {
            let message = "there is no Tokio runtime to watch the file in: call this from within one";
            RulesError::of_all(Some(file.clone()), message)
        })?;
        let text = read(&file)?;
        let rules = Self::read(&text, Some(file.clone()))?.live(&extractors)?;
        rules.keep_up(&runtime, Watched { file, extractors, seen: Ok(text) });
        Ok(rules)
    }
}

/// A file, and what was last found in it.
struct Watched {
    file: Arc<Path>,
    extractors: Extractors,
    seen: Result<String, RulesError>,
}

impl Watched {
    async fn read(&self) -> Option<Result<String, RulesError>> {
        let file = self.file.clone();
        tokio::task::spawn_blocking(move || read(&file)).await.ok()
    }
}

impl Document for Watched {
    async fn look(&mut self) -> Option<News> {
        let text = self.read().await.filter(|text| *text != self.seen)?;
        tokio::time::sleep(SETTLED).await;
        self.seen = self.read().await.filter(|again| *again == text)?;
        let rules = text.and_then(|text| Rules::read(&text, Some(self.file.clone()))?.limits(&self.extractors));
        Some(rules.map_err(Into::into))
    }
}
