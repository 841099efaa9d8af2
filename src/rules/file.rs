//! A file that is watched.

use std::fs::File;
#[cfg(unix)]
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::extractors::Extractors;
use super::problem::RulesError;
use super::{Rules, yaml};
use crate::limit::{Document, LiveLimits, ParseFn};

/// For how long a file has to stay as it is: whoever writes into it writes one part after the other.
const SETTLED: Duration = Duration::from_millis(50);

/// Reads a regular file. It neither waits for whoever writes to a pipe nor reads a device.
pub(super) fn read(file: &Arc<Path>) -> Result<String, RulesError> {
    let read = || {
        let open = open(file)?;
        // Of what was opened: what the path refers to may have changed since.
        let kind = open.metadata()?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "a folder" } else { "a pipe or a device" };
            return Err(io::Error::other(format!("it is {what}: use a regular file, or a link to one")));
        }
        // One byte more than can be too many: the file may grow meanwhile.
        let mut text = String::new();
        open.take(yaml::LONGEST as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| RulesError::of_all(Some(file.clone()), format!("the file can't be read: {error}")))
}

/// Opens a file. To open a pipe would otherwise wait for whoever writes to it.
#[cfg(unix)]
fn open(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(file)
}

#[cfg(not(unix))]
fn open(file: &Path) -> io::Result<File> {
    File::open(file)
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
    /// let limits = RateLimitLayer::with_live_limits(&rules);
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
    /// A file that is wrong, or gone, changes nothing: [`Event::RulesRejected`](crate::Event::RulesRejected) tells
    /// those who [observe](LiveLimits::observe) the rules, and with the feature `tracing` it is an error in the
    /// log; once, until it says something else.
    ///
    /// # Errors
    ///
    /// With all that is wrong with the file, and where it can't be read or is no regular file; when more than 64 limits may apply to one
    /// request; and outside a Tokio runtime.
    pub fn watch(path: impl AsRef<Path>, extractors: Extractors) -> Result<LiveLimits, RulesError> {
        let file: Arc<Path> = path.as_ref().into();
        let runtime = Handle::try_current().map_err(|_| {
            let message = "there is no Tokio runtime to watch the file in: call this from within one";
            RulesError::of_all(Some(file.clone()), message)
        })?;
        let text = read(&file)?;
        let rules = Self::read(&text, Some(file.clone()))?.live(&extractors)?;
        rules.spawn_watcher(&runtime, Watched { file, extractors, seen: Arc::new(Ok(text)) });
        Ok(rules)
    }
}

/// A file, and what was last found in it.
struct Watched {
    file: Arc<Path>,
    extractors: Extractors,
    seen: Arc<Contents>,
}

type Contents = Result<String, RulesError>;

impl Watched {
    /// Reads the file. It may have millions of bytes, so they are compared with `other` on a blocking thread, too.
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

impl Document for Watched {
    async fn poll_change(&mut self) -> Option<ParseFn> {
        let (found, is_known) = self.read(&self.seen).await?;
        if is_known {
            return None;
        }
        let found = Arc::new(found);
        tokio::time::sleep(SETTLED).await;
        let (_, is_settled) = self.read(&found).await?;
        if !is_settled {
            return None;
        }
        self.seen = found.clone();
        let (file, extractors) = (self.file.clone(), self.extractors.clone());
        Some(Box::new(move || {
            let text = found.as_ref().as_ref().map_err(Clone::clone)?;
            Ok(Rules::read(text, Some(file))?.limits(&extractors)?)
        }))
    }
}
