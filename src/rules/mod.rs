//! Limits from files in the format of Envoy's rate limit service.
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use tower_ratelimit::RateLimitLayer;
//! use tower_ratelimit::rules::{Extractors, Rules};
//!
//! let rules = Rules::from_yaml("
//! domain: shop
//! descriptors:
//! ## 10 a second from each address,
//! - key: remote_address
//!   rate_limit: { unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20 }
//! ## none from this one,
//! - key: remote_address
//!   value: 192.0.2.9
//!   rate_limit: { unit: second, requests_per_unit: 0 }
//! ## and five attempts to log in.
//! - key: path
//!   value: /login
//!   descriptors:
//!   - key: remote_address
//!     rate_limit: { name: login, period: 15m, requests_per_unit: 5, algorithm: sliding_log }
//! ")?;
//! let limits = RateLimitLayer::builder(rules.limits(&Extractors::new())?).try_build()?;
//! # let _ = limits;
//! # }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Files for [that service](https://github.com/envoyproxy/ratelimit) load unchanged, except for
//! [unsupported features](#rejected-files). JSON is YAML, too.
//!
//! # Which limits apply
//!
//! With the service, a proxy sends descriptors: lists of keys and values. Here, [`Extractors`] find a value for each
//! key in the request itself. A request has every descriptor of the file whose keys all have values, from an outermost
//! descriptor inwards. All limits that apply are decided together, all or nothing:
//!
//! - **A limit applies** if the request matches its descriptor and all descriptors around it. Limits of nested
//!   descriptors can apply together.
//! - **The most specific descriptor** of those in a list with the same key is selected: the one with the exact value,
//!   or else the first with a matching pattern (`*` matches any text), or else the one without a value. The others, and
//!   the descriptors nested in them, are ignored, even if the selected one has no limit.
//! - **Buckets**: each value of a descriptor without a value has its own bucket. So has each value that matches a
//!   pattern, unless the descriptor has `share_threshold: true`. `key` replaces the key of the bucket.
//! - **`unlimited`** means that this descriptor has no limit. Limits of other paths still apply.
//! - **`replaces`** names limits that do not apply where this one does, even if this one is unlimited, in shadow mode,
//!   or itself replaced. A limit replaces none if it is skipped for lack of its key, if its
//!   [condition](crate::Limit::when) does not hold, or if the limiter does not have it.
//!
//! Unlike in the service, values are compared key by key, so that `a` = `b_c` and `a_b` = `c` differ. As in the
//! service, `unit: month` is 30 days since the Unix epoch; with `calendar`, it is a calendar month.
//!
//! # Changes at runtime
//!
//! [`Rules::watch`] follows a file, and `RedisStore::follow_rules` (feature `redis`) follows rules that a fleet shares
//! in Redis. Both return [`LiveLimits`](crate::LiveLimits).
//!
//! # Rejected files
//!
//! Every error has the line, the column and a suggestion. Unknown, misplaced and duplicate fields are errors (the
//! service ignores misplaced fields), as are `quota_mode` with `shadow_mode`, merge keys (`<<`), and several documents.

mod descriptors;
mod error;
mod extractors;
mod fields;
mod limit;
#[cfg(feature = "redis")]
mod publish;
mod tree;
mod watch;
mod yaml;

use std::path::Path;
use std::sync::Arc;

pub use error::{Problem, RulesError};
pub use extractors::Extractors;

use crate::error::ConfigError;
use crate::limit::Limit;
use descriptors::Descriptor;

/// The contents of a rules file.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The name of the rule set, with which generated names of limits begin.
    domain: String,
    descriptors: Vec<Descriptor>,
    file: Option<Arc<Path>>,
}

impl Rules {
    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// Returns the first error of each invalid descriptor, or only the first one if the text is not YAML.
    pub fn from_yaml(text: &str) -> Result<Self, RulesError> {
        Self::read(text, None)
    }

    /// Creates the limits for a [`RateLimitLayer`](crate::RateLimitLayer) or [`LiveLimits`](crate::LiveLimits), in the
    /// order of the file.
    /// Unlimited rules are left out. At most 64 limits may apply to one request.
    ///
    /// A limiter finds those that apply to a request by one walk through the descriptors, so that files can have
    /// thousands of limits. The limits can still be modified, reordered and left out one by one.
    ///
    /// The name of a limit is its `name`, or else the domain and the path of the descriptor, as in
    /// `shop.path_/login.remote_address`. Names that are not unique, or not valid in a header, are shortened and end
    /// in a hash of the path.
    ///
    /// # Errors
    ///
    /// Returns all errors if a key has no extractor, if its extractor can't find a value of the file, or if descriptors
    /// of one list have the same key and value.
    pub fn limits(&self, extractors: &Extractors) -> Result<Vec<Limit>, RulesError> {
        descriptors::limits(&self.domain, &self.descriptors, extractors, &self.file)
    }

    /// Passes the limits of a text to `apply`. Adds the file to its error, and the position of the limit that it
    /// concerns.
    fn load<T>(
        text: &str,
        file: Option<Arc<Path>>,
        extractors: &Extractors,
        apply: impl FnOnce(Vec<Limit>) -> Result<T, ConfigError>,
    ) -> Result<T, RulesError> {
        let limits = Self::read(text, file.clone())?.limits(extractors)?;
        apply(limits).map_err(|error| RulesError::new(file, vec![error.into()]))
    }

    fn read(text: &str, file: Option<Arc<Path>>) -> Result<Self, RulesError> {
        let mut problems = Vec::new();
        let contents = yaml::read(text).and_then(|root| {
            let descriptors = Descriptor::read_all(&root, &mut problems)?;
            root.check_fields("the file", fields::FILE)?;
            let domain = root.required("domain", "the domain is missing: write `domain: shop`, for example")?;
            Ok((domain.to_owned(), descriptors))
        });
        match contents {
            Ok((domain, descriptors)) if problems.is_empty() => Ok(Self { domain, descriptors, file }),
            _ => {
                problems.extend(contents.err());
                Err(RulesError::new(file, problems))
            }
        }
    }
}
