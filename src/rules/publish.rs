//! Publishes rules for a fleet in Redis, and follows them.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::error::RulesError;
use super::extractors::Extractors;
use super::load::{Document, ReadText, follow, load};
use crate::error::{ConfigError, StoreError};
use crate::limit::{Limit, LiveLimits};
use crate::store::RedisStore;
use crate::time::Cooldown;

/// The name of the document, after the prefix of the store.
const NAME: &str = "rules";

impl RedisStore {
    /// Publishes the text of a rules file for a whole fleet. It is stored in Redis under the prefix of this store, and
    /// all processes that [follow](Self::follow_rules) it apply it within about a second.
    ///
    /// The text is validated first, so `extractors` must be the same as those of the fleet.
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
    /// Returns an error of the kind [`InvalidCall`](crate::StoreErrorKind::InvalidCall) if the text is invalid. Nothing
    /// is published then, nor outside a Tokio runtime. Returns another error if Redis does not confirm the publication.
    /// The text may have been published, and can be published again.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub async fn publish_rules(&self, text: &str, extractors: &Extractors) -> Result<(), StoreError> {
        StoreError::check_runtime()?;
        let (checked, extractors) = (text.to_owned(), extractors.clone());
        let check = move || load(&checked, None, &extractors, |limits| LiveLimits::try_new(limits).map(drop));
        spawn_blocking(check).await.map_err(StoreError::invalid_call)?.map_err(StoreError::invalid_call)?;
        self.publish(NAME, text).await.map_err(StoreError::not_published)
    }

    /// Follows the [published](Self::publish_rules) rules of the fleet, and replaces the limits within about a second
    /// after a publication. Until the first one, the limits `fallback` apply.
    ///
    /// ```no_run
    /// use tower_ratelimit::{RateLimitLayer, RedisStore};
    /// use tower_ratelimit::rules::{self, Extractors};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.prefix("shop");
    /// let extractors = Extractors::new();
    /// let shipped = rules::from_file("limits.yaml", &extractors)?;
    /// let rules = store.follow_rules(extractors, shipped).await?;
    /// let limits = RateLimitLayer::live_builder(&rules).store(store).try_build()?;
    /// # let _ = limits;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Redis is read now, and then polled for changes every second in the background, for as long as the limits are in
    /// use. While Redis does not answer, the previous rules stay in force, or `fallback` if there are none yet.
    ///
    /// They also stay in force if the text is invalid or was deleted. This is reported once until the text changes: as
    /// an [`Event::LimitsRejected`](crate::Event::LimitsRejected) to [observers](LiveLimits::observe) of the limits,
    /// and as an error in the log with the feature `tracing`.
    ///
    /// # Errors
    ///
    /// Returns an error if the `fallback` limits are invalid, as for [`LiveLimits::try_new`], or outside a Tokio runtime.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub async fn follow_rules(
        &self,
        extractors: Extractors,
        fallback: impl IntoIterator<Item = Limit>,
    ) -> Result<LiveLimits, ConfigError> {
        let no_runtime = "there is no Tokio runtime to follow the rules in: call this from within one";
        Handle::try_current().map_err(|_| ConfigError::new(no_runtime))?;
        let rules = LiveLimits::try_new(fallback)?;
        let mut published = PublishedRules { store: self.clone(), seen: None, logged: Cooldown::default() };
        if let Some(text) = published.poll_change().await {
            let (live, extractors) = (rules.clone(), extractors.clone());
            let apply = move || text.and_then(|text| load(&text, None, &extractors, |limits| live.replace(limits)));
            if !spawn_blocking(apply).await.is_ok_and(|applied| applied.is_ok()) {
                // Invalid rules are reported in a second, when there may be a recorder.
                published.seen = None;
            }
        }
        follow(&rules, extractors, None, published);
        Ok(rules)
    }
}

/// The published rules of a fleet.
struct PublishedRules {
    store: RedisStore,
    /// The version that was last read.
    seen: Option<Vec<u8>>,
    /// Since the last failure was logged.
    logged: Cooldown,
}

impl PublishedRules {
    async fn poll(&mut self) -> Result<Option<ReadText>, StoreError> {
        let version = self.store.version(NAME).await?;
        if version == self.seen {
            return Ok(None);
        }
        let text = if version.is_some() { self.store.text(NAME).await? } else { None };
        self.seen = version;
        let deleted = || RulesError::for_file(None, "the rules were deleted from Redis: publish them again");
        Ok(Some(text.map(|text| String::from_utf8_lossy(&text).into_owned()).ok_or_else(deleted)))
    }
}

impl Document for PublishedRules {
    async fn poll_change(&mut self) -> Option<ReadText> {
        self.poll().await.unwrap_or_else(|_error| {
            if self.logged.try_start(Duration::from_secs(60)) {
                #[cfg(feature = "tracing")]
                tracing::warn!(
                    error = &_error as &dyn std::error::Error,
                    "the rules in Redis could not be read: the previous ones stay in force"
                );
            }
            None
        })
    }
}
