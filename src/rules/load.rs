//! Loads rules from text and from files, and follows documents that change: a file, or the rules in Redis.

use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::error::RulesError;
use super::extractors::Extractors;
use super::{descriptors, yaml};
use crate::error::ConfigError;
use crate::limit::{Limit, LiveLimits};

/// The interval at which a document is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a file must stay unchanged before it is used, because it may be written in several steps.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Creates limits from the text of a file, for a [`RateLimitLayer`](crate::RateLimitLayer) or [`LiveLimits`], in the
/// order of the file. Unlimited rules are left out. At most 64 limits may apply to one request.
///
/// A limiter finds those that apply to a request by one walk through the descriptors, so that files can have
/// thousands of limits. The limits can still be modified, reordered and left out one by one.
///
/// The name of a limit is its `name`, or else the domain and the path of the descriptor, as in
/// `shop.path_/login.remote_address`. Names that are not unique, or not valid in a header, are shortened and end in a
/// hash of the path.
///
/// # Errors
///
/// Returns the first error of each invalid descriptor, or only the first one if the text is not YAML. Descriptors are
/// also invalid if a key has no extractor, if its extractor can't find their value, or if those of one list have the
/// same key and value.
pub fn from_yaml(text: &str, extractors: &Extractors) -> Result<Vec<Limit>, RulesError> {
    load(text, None, extractors, Ok)
}

/// Returns the `domain` of a rules file, given its text.
///
/// ```
/// use tower_ratelimit::rules;
///
/// assert_eq!(rules::domain("domain: shop\ndescriptors: []")?, "shop");
/// # Ok::<_, rules::RulesError>(())
/// ```
///
/// # Errors
///
/// Returns an error if the text is not YAML, or has no domain. Nothing else is checked.
pub fn domain(text: &str) -> Result<String, RulesError> {
    let domain = yaml::read(text).and_then(|root| descriptors::domain(&root).map(str::to_owned));
    domain.map_err(|problem| RulesError::new(None, vec![problem]))
}

/// Passes the limits of a text to `apply`. Adds the file to errors, and to those of `apply` the position of the limit
/// that they concern.
pub(super) fn load<T>(
    text: &str,
    file: Option<Arc<Path>>,
    extractors: &Extractors,
    apply: impl FnOnce(Vec<Limit>) -> Result<T, ConfigError>,
) -> Result<T, RulesError> {
    let root = yaml::read(text).map_err(|problem| RulesError::new(file.clone(), vec![problem]))?;
    let limits = descriptors::limits(&root, extractors, &file)?;
    apply(limits).map_err(|error| RulesError::new(file, vec![error.into()]))
}

/// Creates limits from a file, as [`from_yaml`] does. Blocks the thread.
///
/// # Errors
///
/// Returns an error if the file can't be read, or is invalid as for [`from_yaml`].
pub fn from_file(path: impl AsRef<Path>, extractors: &Extractors) -> Result<Vec<Limit>, RulesError> {
    let file: Arc<Path> = path.as_ref().into();
    load(&read_text(&file)?, Some(file), extractors, Ok)
}

/// Reads limits from a file, and replaces them within about a second when it changes.
///
/// ```no_run
/// use tower_ratelimit::RateLimitLayer;
/// use tower_ratelimit::rules::{self, Extractors};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = rules::watch("limits.yaml", Extractors::new())?;
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
    let message = "there is no Tokio runtime to watch the file in: call this from within one";
    Handle::try_current().map_err(|_| RulesError::for_file(Some(file.clone()), message))?;
    let text = read_text(&file)?;
    let rules = load(&text, Some(file.clone()), &extractors, LiveLimits::try_new)?;
    follow(&rules, extractors, Some(file.clone()), WatchedFile { file, seen: Ok(text) });
    Ok(rules)
}

/// The text of a document, or the reason why there is none.
pub(super) type ReadText = Result<String, RulesError>;

/// A document with rules.
pub(super) trait Document: Send + 'static {
    /// Reads the document. If it has changed since the last call, returns its text.
    fn poll_change(&mut self) -> impl Future<Output = Option<ReadText>> + Send;
}

/// Spawns a task that reads `document` every second and replaces the limits when it has changed. The task ends when the
/// limits are dropped. `file` is the file that errors name.
pub(super) fn follow(
    limits: &LiveLimits,
    extractors: Extractors,
    file: Option<Arc<Path>>,
    mut document: impl Document,
) {
    let inner = Arc::downgrade(&limits.inner);
    limits.spawn(async move {
        let mut interval = interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let Some(text) = document.poll_change().await else { continue };
            let Some(limits) = inner.upgrade().map(|inner| LiveLimits { inner }) else { return };
            let (file, extractors) = (file.clone(), extractors.clone());
            let apply = move || {
                let applied = text.and_then(|text| load(&text, file, &extractors, |new| limits.replace(new)));
                applied.unwrap_or_else(|error| limits.report_rejected(&error));
            };
            // On a blocking thread, because large documents take long.
            match spawn_blocking(apply).await {
                Ok(()) => {}
                // An extractor of the rules or a recorder has panicked. Later documents can still be applied.
                Err(error) if error.is_panic() => {
                    #[cfg(feature = "tracing")]
                    tracing::error!(
                        %error,
                        "replacing the rate limits panicked, so the previous ones may stay in force until the next change: \
                         fix the extractor, recorder or observer that panicked"
                    );
                }
                Err(_) => return,
            }
        }
    });
}

/// A file, and its last known contents, or the reason why it can't be read.
struct WatchedFile {
    file: Arc<Path>,
    seen: ReadText,
}

impl WatchedFile {
    /// Reads the file on a blocking thread, since it may have millions of bytes.
    async fn read(&self) -> Option<ReadText> {
        let file = self.file.clone();
        spawn_blocking(move || read_text(&file)).await.ok()
    }
}

impl Document for WatchedFile {
    async fn poll_change(&mut self) -> Option<ReadText> {
        let found = self.read().await.filter(|found| *found != self.seen)?;
        tokio::time::sleep(SETTLE_TIME).await;
        self.seen = self.read().await.filter(|settled| *settled == found)?;
        Some(found)
    }
}

/// Reads a regular file. Does not open pipes and devices, which could block.
fn read_text(file: &Arc<Path>) -> Result<String, RulesError> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A document that changes once.
    struct Changed(Option<&'static str>);

    impl Document for Changed {
        async fn poll_change(&mut self) -> Option<ReadText> {
            self.0.take().map(|text| Ok(text.to_owned()))
        }
    }

    #[tokio::test]
    async fn other_tasks_run_while_a_document_is_applied() {
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (proceed, may_proceed) = mpsc::channel();
        let (done, is_done) = tokio::sync::oneshot::channel();
        let apply = move || {
            begun.send(()).expect("a task that waits");
            let outcome = may_proceed.recv_timeout(Duration::from_secs(60));
            done.send((outcome, thread::current().id())).expect("a test that waits");
        };
        let apply = std::sync::Mutex::new(Some(apply));
        let limits = LiveLimits::new([]).observe(move |_| apply.lock().unwrap().take().expect("one change")());
        follow(&limits, Extractors::new(), None, Changed(Some("domain: shop")));
        has_begun.await.expect("the document is applied");
        proceed.send(()).expect("the application goes on");
        let (outcome, thread) = is_done.await.expect("the document was applied");
        assert_eq!(outcome, Ok(()), "no other task ran meanwhile");
        assert_ne!(thread, thread::current().id());
    }
}
