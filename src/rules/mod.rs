//! Limits from a file, in the form of Envoy's rate limit service.
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
//! let limits = RateLimitLayer::new(rules.limits(&Extractors::new())?);
//! # let _ = limits;
//! # }
//! # Ok::<_, tower_ratelimit::rules::RulesError>(())
//! ```
//!
//! A file that was written for [that service](https://github.com/envoyproxy/ratelimit) loads
//! unchanged, but for what [isn't supported](#what-is-refused). JSON is YAML, too.
//!
//! # Which limits apply
//!
//! A proxy sends the service descriptors: lists of keys and values. Here, each path of keys in the
//! file, from the outermost descriptor to any within it, is a descriptor of every request that has a
//! value for each key: `Extractors` says how they are taken from it. So all that apply apply
//! together, all or nothing:
//!
//! - **A limit applies** when the request has what its descriptor wants, and what those around it
//!   want. A limit on a descriptor and one within it can both apply.
//! - **The most specific descriptor alone** is chosen from those of a list that have the same key: the exact
//!   value, or else the first pattern that fits (`*` stands for any text), or else the one without
//!   a value. If the chosen one has no limit, none applies, and what is within the others is not
//!   looked at: a value without a limit is free.
//! - **Buckets**: each value of a descriptor without one has its own, and so has each value that
//!   fits a pattern, unless the descriptor says `share_threshold: true`. `key` charges something
//!   else.
//! - **`unlimited`** says that this descriptor has no limit. Those of other paths still apply.
//! - **`replaces`** names limits that do not apply to requests to which this one does, even if this one is
//!   unlimited, in shadow mode, or replaced by another.
//!
//! Differences: values are compared key by key (the service can't tell `a` = `b_c` from `a_b` =
//! `c`). `unit: month` is 30 days from the Unix epoch on, as it is there; `calendar: month` is a month of the calendar.
//!
//! # While it runs
//!
//! [`Rules::watch`] has layers go by a file that changes, and `RedisStore::follow_rules` (feature `redis`) by
//! rules that a fleet keeps in Redis: see [`LiveLimits`].
//!
//! # What is refused
//!
//! Every error names the line, the column and what to do. Refused are fields that nobody knows or
//! in a wrong place (there, a misplaced one is ignored), what is there twice, `quota_mode` with
//! `shadow_mode`, merge keys (`<<`), and more than one document.

mod allowance;
mod calendar;
mod compile;
mod descriptor;
mod extractors;
mod fields;
mod file;
mod pattern;
mod penalty;
mod period;
mod policy;
mod problem;
#[cfg(feature = "redis")]
mod publish;
mod tree;
mod value;
mod values;
mod yaml;

use std::path::Path;
use std::sync::Arc;

pub use allowance::Allowance;
pub use descriptor::{Descriptor, Wanted};
pub use extractors::Extractors;
pub use pattern::Pattern;
pub use policy::Policy;
pub use problem::{Position, Problem, RulesError};
#[cfg(feature = "redis")]
pub use publish::PublishError;

use crate::limit::{Limit, LiveLimits};
use fields::Fields;

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rules {
    /// Whose rules they are. The names of limits begin with it that have none of their own.
    pub domain: String,
    /// What requests can have.
    pub descriptors: Vec<Descriptor>,
    file: Option<Arc<Path>>,
}

const FIELDS: &[&str] = &["domain", "descriptors"];

impl Rules {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// With all that is wrong, or the first place where it is no YAML.
    pub fn from_yaml(text: &str) -> Result<Self, RulesError> {
        Self::read(text, None)
    }

    /// Reads a file, at once: it blocks.
    ///
    /// # Errors
    ///
    /// With all that is wrong, or the first place where it is no YAML; and where it can't be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, RulesError> {
        let file: Arc<Path> = path.as_ref().into();
        Self::read(&file::read(&file)?, Some(file))
    }

    /// The limits, in the order of the file, for a [`RateLimitLayer`](crate::RateLimitLayer) or [`LiveLimits`],
    /// of which at most 64 may apply to one request. Those that are unlimited are left out.
    ///
    /// Given to one limiter, they are looked for together, however many there are: a request walks the
    /// descriptors that it meets. Each can still be changed, left out or put elsewhere in the list.
    ///
    /// A limit's name is what the file says, or the domain and its way there, as in
    /// `shop.path_/login.remote_address`. If others have the same, or it can't stand in a header, it
    /// is cut and ends in a hash of its way.
    ///
    /// # Errors
    ///
    /// When a key names no extractor, a value can't be what its extractor finds, or a feature is not
    /// supported yet.
    pub fn limits(&self, extractors: &Extractors) -> Result<Vec<Limit>, RulesError> {
        compile::limits(&self.domain, &self.descriptors, extractors)
            .map_err(|problems| RulesError::new(self.file.clone(), problems))
    }

    /// The same, to be replaced by others.
    fn live(&self, extractors: &Extractors) -> Result<LiveLimits, RulesError> {
        let limits = self.limits(extractors)?;
        LiveLimits::try_new(limits).map_err(|error| RulesError::of_all(self.file.clone(), error))
    }

    fn read(text: &str, file: Option<Arc<Path>>) -> Result<Self, RulesError> {
        let mut problems = Vec::new();
        let root = match yaml::read(text) {
            Ok(root) => root,
            Err(problem) => return Err(RulesError::new(file, vec![problem])),
        };
        let Some(root) = root.filter(|root| !root.is_null()) else {
            let problem = Problem::new(Position::default(), "the file is empty: begin with `domain: …`");
            return Err(RulesError::new(file, vec![problem]));
        };
        let fields = Fields::of(&root, "the file", FIELDS, |_| None, &mut problems);
        let (domain, descriptors) = fields.map_or_else(Default::default, |fields| {
            let otherwise = "there is no domain: write `domain: shop`, for example";
            let domain = fields.required("domain", otherwise, &mut problems).map_or("", |(domain, _)| domain);
            let nodes = fields.list("descriptors", &mut problems);
            (domain.to_owned(), Descriptor::read_all(nodes, &mut problems))
        });
        if problems.is_empty() { Ok(Self { domain, descriptors, file }) } else { Err(RulesError::new(file, problems)) }
    }
}
