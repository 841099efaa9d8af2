//! Errors in a configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
#[cfg(feature = "redis")]
use super::redis_config::RedisConfigError;
use super::rule_position::RulePosition;

/// An invalid configuration. The message names the invalid value and the remedy.
///
/// `Debug` writes the same message, so that `main` prints it when it returns the error.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::FixedWindow;
///
/// let error = FixedWindow::try_new(0, Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.to_string(), "limit is 0: allow at least 1 token, or leave the limit out");
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct ConfigError {
    kind: ConfigErrorKind,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ConfigErrorKind {
    Value(Fault),
    TooManyLimits {
        limits: usize,
        most: usize,
    },
    NameEmpty,
    NameTooLong {
        name: String,
    },
    NameCharacter {
        name: String,
        character: char,
    },
    NameTwice {
        name: String,
    },
    CostOverCapacity {
        limit: String,
        cost: u64,
        capacity: u64,
        /// Where the limit is, if it comes from a rules file.
        rule: Option<Arc<RulePosition>>,
    },
    SoftZero {
        limit: String,
    },
    SoftTooLarge {
        limit: String,
        percent: u32,
        capacity: u64,
    },
    QuotaPenalty {
        limit: String,
    },
    PathWithoutSlash {
        what: &'static str,
        path: String,
    },
    OverrideAlgorithm {
        limit: String,
        is: String,
        given: String,
    },
    NotOverridable {
        limit: String,
    },
    NoSuchLimit {
        name: String,
    },
    OverrideExpiry {
        after: Duration,
    },
    Cidr {
        text: String,
    },
    CidrHostBits {
        text: String,
        network: String,
    },
    CidrLeadingZeros {
        text: String,
        network: String,
    },
    CidrsCoverFamily {
        family: &'static str,
    },
    NoProxies,
    ListIsAsync,
    HeaderName {
        name: String,
    },
    NeedsRequest {
        limit: String,
        what: &'static str,
    },
    #[cfg(feature = "time-zones")]
    TimeZone {
        zone: String,
    },
    #[cfg(all(feature = "rules", not(feature = "time-zones")))]
    NoTimeZones {
        zone: String,
    },
    #[cfg(feature = "time-zones")]
    TimeOfDay {
        time: String,
    },
    #[cfg(feature = "redis")]
    Redis(RedisConfigError),
}

/// Unwraps `result`, or panics with the error's message at the caller's location.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, ConfigError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self { kind: ConfigErrorKind::Value(fault) }
    }
}

#[cfg(feature = "redis")]
impl From<RedisConfigError> for ConfigError {
    fn from(error: RedisConfigError) -> Self {
        ConfigErrorKind::Redis(error).into()
    }
}

impl ConfigError {
    /// Returns the position of the limit in its rules file, if the error concerns such a limit.
    pub(crate) fn rule_position(&self) -> Option<&RulePosition> {
        match &self.kind {
            ConfigErrorKind::CostOverCapacity { rule, .. } => rule.as_deref(),
            _ => None,
        }
    }

    /// Returns the message without the position in a rules file.
    #[cfg(feature = "rules")]
    pub(crate) fn message(&self) -> String {
        self.kind.to_string()
    }
}

impl From<ConfigErrorKind> for ConfigError {
    fn from(kind: ConfigErrorKind) -> Self {
        Self { kind }
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.rule_position() {
            write!(f, "{position}: ")?;
        }
        self.kind.fmt(f)
    }
}

impl fmt::Display for ConfigErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(fault) => fault.fmt(f),
            Self::TooManyLimits { limits, most: 64 } => {
                write!(f, "{limits} limits for one request are too many: use at most 64")
            }
            Self::TooManyLimits { limits, most } => {
                write!(f, "{limits} limits are too many: use at most {most}")
            }
            Self::NameEmpty => write!(f, "a limit's name is empty: give it 1 to 64 characters"),
            Self::NameTooLong { name } => {
                write!(f, "the limit's name {name:?} has {} characters: use at most 64", name.chars().count())
            }
            Self::NameCharacter { name, character } => write!(
                f,
                "the limit's name {name:?} has the character {character:?}: use ASCII letters, digits, \
                 punctuation and spaces, which HTTP headers can carry"
            ),
            Self::NameTwice { name } => {
                write!(f, "two limits are named {name:?}: give each a name of its own")
            }
            Self::CostOverCapacity { limit, cost, capacity, rule } => {
                let own_cost = match rule {
                    None => "give the limit a cost of its own with `Limit::cost`",
                    Some(_) => "set its field `cost`",
                };
                write!(
                    f,
                    "a cost of {cost} can never pass the limit {limit:?}, which holds {capacity}: \
                     lower the cost, raise the limit, or {own_cost}"
                )
            }
            Self::SoftZero { limit } => {
                write!(f, "the limit {limit:?} is soft by 0 %: use at least 1, or leave it hard")
            }
            Self::SoftTooLarge { limit, percent, capacity } => write!(
                f,
                "the limit {limit:?} of {capacity} and {percent} % of that are more than the 4,294,967,295 tokens that \
                 a limit can have, or take more than 142 years to drain: lower one"
            ),
            Self::QuotaPenalty { limit } => write!(
                f,
                "the limit {limit:?} is in quota mode and has a penalty, but does not deny requests by itself: \
                 leave one out"
            ),
            Self::OverrideAlgorithm { limit, is, given } => write!(
                f,
                "{given} is not a size of the limit {limit:?}, which is {is}: use the same algorithm and period, and change \
                 only the tokens"
            ),
            Self::NotOverridable { limit } => {
                write!(f, "the limit {limit:?} has no overrides: call `Limit::overridable` when you build it")
            }
            Self::NoSuchLimit { name } => {
                write!(f, "there is no limit named {name:?}: use the name that you built it with")
            }
            Self::OverrideExpiry { after } => write!(
                f,
                "an override expires after {after:?}: give it from 1 ns to 36,525 days, or `None` to keep it until it \
                 is removed"
            ),
            Self::PathWithoutSlash { what, path } => {
                write!(f, "the {what} {path:?} matches nothing: start it with a slash, {:?}", format!("/{path}"))
            }
            Self::Cidr { text } => write!(
                f,
                "{text:?} is not a network: write one like \"10.0.0.0/8\" or \"fd00::/8\", or a single address"
            ),
            Self::CidrHostBits { text, network } => write!(
                f,
                "the network {text:?} has bits beyond its prefix: write {network:?}, or the address without a prefix \
                 if that alone is meant"
            ),
            Self::CidrLeadingZeros { text, network } => write!(
                f,
                "the network {text:?} has a number with a leading zero, which some programs read as octal: \
                 write {network:?} if that is meant"
            ),
            Self::CidrsCoverFamily { family } => write!(
                f,
                "the trusted networks cover all of {family}, so that every client could choose its address: name the \
                 proxies' networks, or count the proxies with `TrustedProxies::hops` if nobody else can connect"
            ),
            Self::NoProxies => {
                write!(f, "no proxy is trusted: name at least one network or hop, or use `key::peer_ip`")
            }
            Self::ListIsAsync => write!(
                f,
                "a list can't have an asynchronous extractor, because lists are checked before anything that waits: look the \
                 key up in an outer layer, and use `key::extension`"
            ),
            Self::HeaderName { name } => {
                write!(f, "{name:?} is not a header's name: use letters, digits and dashes")
            }
            Self::NeedsRequest { limit, what } => write!(
                f,
                "the limit {limit:?} takes its {what} from a request, but a `Limiter` has none: \
                 decide it where you call `acquire`, or use a `RateLimitLayer`"
            ),
            #[cfg(feature = "time-zones")]
            Self::TimeZone { zone } => write!(
                f,
                "there is no time zone {zone:?}: use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
            ),
            #[cfg(all(feature = "rules", not(feature = "time-zones")))]
            Self::NoTimeZones { zone } => {
                write!(f, "the time zone {zone:?} needs the feature `time-zones`: turn it on, or use \"UTC\"")
            }
            #[cfg(feature = "time-zones")]
            Self::TimeOfDay { time } => {
                write!(f, "{time:?} is not a time of day: write hours and minutes, from \"0:00\" to \"23:59\"")
            }
            #[cfg(feature = "redis")]
            Self::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {}
