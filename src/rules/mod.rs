//! Limits from files in the format of Envoy's rate limit service.
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use tower_ratelimit::RateLimitLayer;
//! use tower_ratelimit::rules::{self, Extractors};
//!
//! let limits = rules::from_yaml("
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
//! ", &Extractors::new())?;
//! let limits = RateLimitLayer::builder(limits).try_build()?;
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
//! With the service, a proxy sends descriptors: lists of keys and values, for which [`descriptors()`] apply the limits
//! as the service does. Here, [`Extractors`] find a value for each key in the request itself. A request has every
//! descriptor of the file whose keys all have values, from an outermost descriptor inwards. All limits that apply are
//! decided together, all or nothing:
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
//! [`watch()`] follows a file, and `RedisStore::follow_rules` (feature `redis`) follows rules that a fleet shares
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
mod load;
mod proxy_call;
#[cfg(feature = "redis")]
mod publish;
mod tree;
mod yaml;

pub use error::{Problem, RulesError};
pub use extractors::Extractors;
pub use load::{domain, from_file, from_yaml, watch};
pub use proxy_call::descriptors;
