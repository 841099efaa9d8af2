//! Rules that a fleet keeps in Redis.

use std::fmt;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Rules;
use super::extractors::Extractors;
use super::problem::RulesError;
use crate::error::{ConfigError, StoreError};
use crate::limit::{Document, Limit, LiveLimits, ParseFn};
use crate::store::RedisStore;

/// What it is called, behind the store's prefix.
const NAME: &str = "rules";

impl RedisStore {
    /// Has the whole fleet go by other rules: a file's text, which is kept in Redis under this store's prefix,
    /// and read within about a second by all who [follow](Self::follow_rules) it there.
    ///
    /// The `extractors` are those of the fleet: the text is first read as its nodes will.
    ///
    /// ```no_run
    /// use tower_ratelimit::RedisStore;
    /// use tower_ratelimit::rules::Extractors;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.prefix("shop");
    /// store.publish_rules(&std::fs::read_to_string("limits.yaml")?, &Extractors::new()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// With all that is wrong with the text, and then nothing is published; and when Redis does not say that it
    /// is: it may be all the same, and can be published again.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub async fn publish_rules(&self, text: &str, extractors: &Extractors) -> Result<(), PublishError> {
        let (checked, extractors) = (text.to_owned(), extractors.clone());
        let check = move || Rules::from_yaml(&checked)?.live(&extractors).map(drop);
        blocking(check).await.map_err(PublishError::Refused)?;
        self.publish(NAME, text).await.map_err(PublishError::Store)
    }

    /// The rules that the fleet [was given](Self::publish_rules), which are replaced when it is given others:
    /// within about a second. Until there are any, `otherwise` applies.
    ///
    /// ```no_run
    /// use tower_ratelimit::{RateLimitLayer, RedisStore};
    /// use tower_ratelimit::rules::{Extractors, Rules};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.prefix("shop");
    /// let extractors = Extractors::new();
    /// let shipped = Rules::from_file("limits.yaml")?.limits(&extractors)?;
    /// let rules = store.follow_rules(extractors, shipped).await?;
    /// let limits = RateLimitLayer::with_live_limits(&rules).store(store);
    /// # let _ = limits;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Redis is asked now, and then every second in the background whether they are still the same, for as long
    /// as anyone goes by them. While it does not answer, the old rules stay: those that applied `otherwise`, if
    /// it never has. So they do where the text is wrong, which someone else may have put there, or gone:
    /// [`Event::RulesRejected`](crate::Event::RulesRejected) tells those who [observe](LiveLimits::observe) the
    /// rules, and with the feature `tracing` it is an error in the log; once, until it says something else.
    ///
    /// # Errors
    ///
    /// When the limits that apply `otherwise` are refused, as by [`LiveLimits::try_new`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub async fn follow_rules(
        &self,
        extractors: Extractors,
        otherwise: impl IntoIterator<Item = Limit>,
    ) -> Result<LiveLimits, ConfigError> {
        let rules = LiveLimits::try_new(otherwise)?;
        let mut followed = Followed { store: self.clone(), extractors, seen: None, outages: Outages::default() };
        if let Some(parse) = followed.poll_change().await {
            let replaced = rules.clone();
            let take_up = move || parse().is_ok_and(|limits| replaced.replace(limits).is_ok());
            if !blocking(take_up).await {
                // What is wrong is told in a second, when there may be someone to tell.
                followed.seen = None;
            }
        }
        rules.spawn_watcher(&Handle::current(), followed);
        Ok(rules)
    }
}

/// Does what takes long on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and drops this task next.
        Err(_) => std::future::pending().await,
    }
}

/// What a fleet is given, and what was last found there.
struct Followed {
    store: RedisStore,
    extractors: Extractors,
    /// Its version.
    seen: Option<Vec<u8>>,
    outages: Outages,
}

impl Followed {
    async fn ask(&mut self) -> Result<Option<ParseFn>, StoreError> {
        let version = self.store.version(NAME).await?;
        if version == self.seen {
            return Ok(None);
        }
        let text = if version.is_some() { self.store.text(NAME).await? } else { None };
        self.seen = version;
        let Some(text) = text else {
            let gone = RulesError::of_all(None, "the rules that Redis kept are gone: publish them again");
            return Ok(Some(Box::new(|| Err(gone.into()))));
        };
        let extractors = self.extractors.clone();
        Ok(Some(Box::new(move || Ok(Rules::from_yaml(&String::from_utf8_lossy(&text))?.limits(&extractors)?))))
    }
}

impl Document for Followed {
    async fn poll_change(&mut self) -> Option<ParseFn> {
        match self.ask().await {
            Ok(parse) => {
                self.outages.end();
                parse
            }
            Err(error) => {
                if self.outages.is_to_be_logged() {
                    #[cfg(feature = "tracing")]
                    {
                        let error: &dyn std::error::Error = &error;
                        tracing::warn!(error, "the rules in Redis could not be read: the previous ones stay in force");
                    }
                }
                drop(error);
                None
            }
        }
    }
}

/// How far apart the log lines of two outages are.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Which outages of Redis are logged: each once, and at most one in a minute, however often Redis comes and goes.
#[derive(Debug, Default)]
struct Outages {
    /// When one was last logged.
    last: Option<Instant>,
    /// Whether the present one was.
    is_logged: bool,
}

impl Outages {
    /// Returns whether a failure is to be logged now.
    fn is_to_be_logged(&mut self) -> bool {
        if self.is_logged || self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return false;
        }
        (self.last, self.is_logged) = (Some(Instant::now()), true);
        true
    }

    fn end(&mut self) {
        self.is_logged = false;
    }
}

/// Rules that were not published.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// They are wrong.
    Refused(RulesError),
    /// The store could not say that it keeps them.
    Store(StoreError),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Store(_) => f.write_str("the rules could not be published, as far as is known: publish them again"),
        }
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_redis_that_comes_and_goes_is_logged_once_a_minute() {
        let mut outages = Outages::default();
        let mut lines = 0;
        for _ in 0..300 {
            lines += u32::from(outages.is_to_be_logged());
            tokio::time::advance(Duration::from_secs(1)).await;
            outages.end();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(lines, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_outage_is_logged_once() {
        let mut outages = Outages::default();
        let mut lines = 0;
        for _ in 0..300 {
            lines += u32::from(outages.is_to_be_logged());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(lines, 1);
    }
}
