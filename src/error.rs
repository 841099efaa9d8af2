//! What can be wrong with a configuration or with a store.

mod message;

use std::fmt;
use std::time::Duration;

use self::message::Message;
use crate::node::Node;

/// A configuration that was refused when it was built.
///
/// Its text names the value and what to change.
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
    CostPath {
        path: String,
    },
    AnotherKind {
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
    Expiry {
        after: Duration,
    },
    Cidr {
        text: String,
    },
    CidrBits {
        text: String,
        network: String,
    },
    CidrZeros {
        text: String,
        network: String,
    },
    CidrsOfEveryone {
        family: &'static str,
    },
    NoProxies,
    ListWaits,
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
}

/// A value out of its range: what constructors find that also run at compile time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    Zero { what: &'static str },
    PeriodZero { what: &'static str },
    WaitZero { what: &'static str },
    PeriodTooLong { what: &'static str, is: Duration },
    PeriodNotWhole { what: &'static str, is: Duration },
    Buckets { period: Duration, buckets: u32 },
    DayOfMonth { day: u32 },
    NoMonth,
    NoKeys,
    NoNodes,
    NoFailures,
    Denials { denials: u32 },
    Doubling { first: Duration, longest: Duration },
}

impl Fault {
    /// Describes the fault with its value. It is `const`, so that panics in constants name the value too.
    pub(crate) const fn message(self) -> Message {
        let message = Message::new();
        match self {
            Self::Zero { what } => message.text(what).text(" is 0: allow at least 1 token, or leave the limit out"),
            Self::PeriodZero { what } => message.text(what).text(" is 0: use at least 1 µs"),
            Self::WaitZero { what } => message.text(what).text(" is 0: use at least 1 ns"),
            Self::PeriodTooLong { what, is } => {
                message.text(what).text(" ").span(is).text(" is longer than 366 days: shorten it")
            }
            Self::PeriodNotWhole { what, is } => {
                message.text(what).text(" ").span(is).text(" is not a whole number of microseconds: round it")
            }
            Self::Buckets { period, buckets: 0 } => {
                message.text("period ").span(period).text(" is cut into 0 buckets: use at least 1")
            }
            Self::Buckets { period, buckets } => {
                let message = message.text("period ").span(period).text(" does not divide into ");
                let message = message.number(buckets as u128).text(" buckets of whole microseconds: use ");
                match fewer_buckets(period.as_micros(), buckets) {
                    Some(fewer) => message.number(fewer as u128).text(", for example"),
                    None => message.text("a number that divides ").number(period.as_micros()),
                }
            }
            Self::Denials { denials } => message
                .text("a penalty comes after ")
                .number(denials as u128)
                .text(" denials: use 1 to 1,000, or leave it out"),
            Self::Doubling { first, longest } => message
                .text("a penalty refuses for ")
                .span(first)
                .text(" at first and doubles that up to ")
                .span(longest)
                .text(", which is shorter: lengthen that, or shorten the first"),
            Self::DayOfMonth { day } => {
                message.text("no month has a day ").number(day as u128).text(": use one from 1 to 31")
            }
            Self::NoMonth => message.text("`from_day` is for months: use `CalendarWindow::monthly`, or leave it out"),
            Self::NoKeys => message.text("max_keys is 0: remember at least 1 key"),
            Self::NoNodes => message.text("a limit is shared by 0 nodes: count all that share it, this one too"),
            Self::NoFailures => {
                message.text("a circuit breaker opens after 0 failures: use at least 1, or turn it off")
            }
        }
    }
}

/// The largest number of buckets, if there is one close below `buckets`, into which a period of `micros` divides.
const fn fewer_buckets(micros: u128, buckets: u32) -> Option<u32> {
    let mut fewer = buckets - 1;
    while fewer > 0 && buckets - fewer <= 4096 {
        if micros.is_multiple_of(fewer as u128) {
            return Some(fewer);
        }
        fewer -= 1;
    }
    None
}

/// The value, or a panic of the caller's that says what is wrong: what a closure panics with is told of the line
/// that it is on.
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

impl From<ConfigErrorKind> for ConfigError {
    fn from(kind: ConfigErrorKind) -> Self {
        Self { kind }
    }
}

/// The text, as `main` shows it that returns this error.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ConfigErrorKind::Value(fault) => fault.fmt(f),
            ConfigErrorKind::TooManyLimits { limits, most: 64 } => {
                write!(f, "{limits} limits for one request are too many: use at most 64")
            }
            ConfigErrorKind::TooManyLimits { limits, most } => {
                write!(f, "{limits} limits are too many: use at most {most}")
            }
            ConfigErrorKind::NameEmpty => write!(f, "a limit's name is empty: give it 1 to 64 characters"),
            ConfigErrorKind::NameTooLong { name } => {
                write!(f, "the limit's name {name:?} has {} characters: use at most 64", name.chars().count())
            }
            ConfigErrorKind::NameCharacter { name, character } => write!(
                f,
                "the limit's name {name:?} has the character {character:?}: use ASCII letters, digits, \
                 punctuation and spaces, which HTTP headers can carry"
            ),
            ConfigErrorKind::NameTwice { name } => {
                write!(f, "two limits are named {name:?}: give each a name of its own")
            }
            ConfigErrorKind::CostOverCapacity { limit, cost, capacity } => write!(
                f,
                "a cost of {cost} can never pass the limit {limit:?}, which holds {capacity}: \
                 lower the cost, raise the limit, or give the limit a cost of its own with `Limit::cost`"
            ),
            ConfigErrorKind::SoftZero { limit } => {
                write!(f, "the limit {limit:?} is soft by 0 %: use at least 1, or leave it hard")
            }
            ConfigErrorKind::SoftTooLarge { limit, percent, capacity } => write!(
                f,
                "the limit {limit:?} of {capacity} and {percent} % of that are more than the 4,294,967,295 tokens that \
                 a limit can have: lower one"
            ),
            ConfigErrorKind::QuotaPenalty { limit } => write!(
                f,
                "the limit {limit:?} is in quota mode and has a penalty, but does not deny requests by itself: \
                 leave one out"
            ),
            ConfigErrorKind::AnotherKind { limit, is, given } => write!(
                f,
                "{given} is no other size of the limit {limit:?}, which is {is}: give it the same algorithm and \
                 period, and other tokens"
            ),
            ConfigErrorKind::NotOverridable { limit } => {
                write!(f, "the limit {limit:?} has no overrides: say `Limit::overridable` where it is made")
            }
            ConfigErrorKind::NoSuchLimit { name } => {
                write!(f, "there is no limit named {name:?}: use the name that it was made with")
            }
            ConfigErrorKind::Expiry { after } => write!(
                f,
                "an override expires after {after:?}: give it from 1 ns to 36,525 days, or `None` to keep it until it \
                 is removed"
            ),
            ConfigErrorKind::CostPath { path } => write!(
                f,
                "the cost table's path {path:?} matches nothing, as paths start with a slash: write {:?}",
                format!("/{path}")
            ),
            ConfigErrorKind::Cidr { text } => write!(
                f,
                "{text:?} is not a network: write one like \"10.0.0.0/8\" or \"fd00::/8\", or a single address"
            ),
            ConfigErrorKind::CidrBits { text, network } => write!(
                f,
                "the network {text:?} has bits beyond its prefix: write {network:?}, or the address without a prefix \
                 if that alone is meant"
            ),
            ConfigErrorKind::CidrZeros { text, network } => write!(
                f,
                "the network {text:?} has a number with a leading zero, which some programs read as octal: \
                 write {network:?} if that is meant"
            ),
            ConfigErrorKind::CidrsOfEveryone { family } => write!(
                f,
                "the trusted networks hold all of {family}, so that every client could choose its address: name the \
                 proxies' networks, or count the proxies with `TrustedProxies::hops` if nobody else can connect"
            ),
            ConfigErrorKind::NoProxies => {
                write!(f, "no proxy is trusted: name at least one network or hop, or use `key::peer_ip`")
            }
            ConfigErrorKind::ListWaits => write!(
                f,
                "a list's key has yet to be found out, and lists are asked before anything that waits: use what an \
                 outer layer has found, by `key::extension`"
            ),
            ConfigErrorKind::HeaderName { name } => {
                write!(f, "{name:?} is not a header's name: use letters, digits and dashes")
            }
            ConfigErrorKind::NeedsRequest { limit, what } => write!(
                f,
                "the limit {limit:?} takes its {what} from a request, and a `Limiter` sees none: \
                 leave that out and see to it where you call `acquire`, or use a `RateLimitLayer`"
            ),
            #[cfg(feature = "time-zones")]
            ConfigErrorKind::TimeZone { zone } => write!(
                f,
                "there is no time zone {zone:?}: use a name of the IANA's database, such as \"Europe/Berlin\" or \"UTC\""
            ),
            #[cfg(all(feature = "rules", not(feature = "time-zones")))]
            ConfigErrorKind::NoTimeZones { zone } => {
                write!(f, "the time zone {zone:?} needs the feature `time-zones`: turn it on, or use \"UTC\"")
            }
            #[cfg(feature = "time-zones")]
            ConfigErrorKind::TimeOfDay { time } => {
                write!(f, "{time:?} is not a time of day: write hours and minutes, from \"0:00\" to \"23:59\"")
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message().as_str())
    }
}

impl std::error::Error for ConfigError {}

/// A store that could not decide. It is not a denial.
///
/// Its text and [`source`](std::error::Error::source) are for operators; clients never see them.
/// `Debug` shows all of it in one line, as `main` does that returns this error.
pub struct StoreError {
    cause: Cause,
    node: Option<Node>,
}

enum Cause {
    /// It can't be used: not yet, or not as it is configured.
    #[cfg(feature = "redis")]
    Unusable {
        /// Where it is, without what is secret.
        at: Option<String>,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// One request could not be decided, by a store that works.
    Undecidable(Box<dyn std::error::Error + Send + Sync>),
    TimedOut {
        deadline: Duration,
    },
    /// As many requests wait for it as may.
    #[cfg(feature = "redis")]
    QueueFull(Box<dyn std::error::Error + Send + Sync>),
    BreakerOpen,
    /// It does not do what it was asked to.
    NotSupported,
    /// It has as many overrides as it may.
    Full {
        most: usize,
    },
    /// It was not asked, as there are more or fewer charges than limits.
    ChargeCount {
        given: usize,
        limits: usize,
    },
}

/// What kept a store from deciding.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It failed, as the error's [`source`](std::error::Error::source) says.
    Failed,
    /// It did not answer within the [deadline](crate::Limiter::deadline).
    TimedOut,
    /// It was not asked, as too many requests wait for it already, as the error's
    /// [`source`](std::error::Error::source) says. This neither opens the [circuit breaker](crate::CircuitBreaker) nor
    /// keeps it closed.
    QueueFull,
    /// It was not asked: the [circuit breaker](crate::CircuitBreaker) is open.
    BreakerOpen,
    /// It keeps no [overrides](crate::Overrides), as a store of one's own may not.
    NotSupported,
    /// It has as many [overrides](crate::Overrides) as [it may](crate::MemoryStore::max_overrides).
    Full,
    /// It was not asked: [`acquire_each`](crate::Limiter::acquire_each) or
    /// [`acquire_all`](crate::Limiter::acquire_all) was given more or fewer charges than there are limits.
    ChargeCount {
        /// The number of charges that were given.
        given: usize,
        /// The number of limits, each of which takes one.
        limits: usize,
    },
}

impl StoreError {
    const fn of(cause: Cause) -> Self {
        Self { cause, node: None }
    }

    /// Wraps what went wrong.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::Failed(source.into()))
    }

    /// Wraps what is wrong with one request, or with what its keys hold, where a store works otherwise:
    /// that opens no [circuit breaker](crate::CircuitBreaker).
    pub fn of_one_request(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::Undecidable(source.into()))
    }

    /// Names the node that failed, of a store that [has several](crate::Store::node).
    #[must_use]
    pub fn at(self, node: Node) -> Self {
        Self { node: Some(node), ..self }
    }

    /// The node that failed, if the store has several and it is known which.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Whether the store works all the same.
    pub(crate) const fn is_of_one_request(&self) -> bool {
        matches!(
            self.cause,
            Cause::Undecidable(_) | Cause::NotSupported | Cause::Full { .. } | Cause::ChargeCount { .. }
        )
    }

    /// Wraps what keeps a store, which may be known to be `at` some place, from being used at all.
    #[cfg(feature = "redis")]
    pub(crate) fn unusable(at: Option<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::Unusable { at, source: source.into() })
    }

    pub(crate) const fn timed_out(deadline: Duration) -> Self {
        Self::of(Cause::TimedOut { deadline })
    }

    /// Wraps which queue is full, and of how many requests.
    #[cfg(feature = "redis")]
    pub(crate) fn queue_full(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::of(Cause::QueueFull(source.into()))
    }

    pub(crate) const fn breaker_open() -> Self {
        Self::of(Cause::BreakerOpen)
    }

    pub(crate) const fn not_supported() -> Self {
        Self::of(Cause::NotSupported)
    }

    pub(crate) const fn full(most: usize) -> Self {
        Self::of(Cause::Full { most })
    }

    pub(crate) const fn charge_count(given: usize, limits: usize) -> Self {
        Self::of(Cause::ChargeCount { given, limits })
    }

    /// What kept the store from deciding.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        match self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { .. } => StoreErrorKind::Failed,
            Cause::Failed(_) | Cause::Undecidable(_) => StoreErrorKind::Failed,
            Cause::TimedOut { .. } => StoreErrorKind::TimedOut,
            #[cfg(feature = "redis")]
            Cause::QueueFull(_) => StoreErrorKind::QueueFull,
            Cause::BreakerOpen => StoreErrorKind::BreakerOpen,
            Cause::NotSupported => StoreErrorKind::NotSupported,
            Cause::Full { .. } => StoreErrorKind::Full,
            Cause::ChargeCount { given, limits } => StoreErrorKind::ChargeCount { given, limits },
        }
    }
}

/// The text and those of all its sources, in one line.
impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        let mut source = std::error::Error::source(self);
        let mut told = String::new();
        while let Some(error) = source {
            let text = error.to_string();
            // Some say all that their cause does.
            if !told.ends_with(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.node.as_ref().map_or_else(String::new, |node| format!(" at {node}"));
        match &self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { at: Some(at), .. } => write!(f, "the rate limit store at {at} can't be used"),
            #[cfg(feature = "redis")]
            Cause::Unusable { at: None, .. } => write!(f, "the rate limit store can't be used"),
            Cause::Failed(_) | Cause::Undecidable(_) => write!(f, "the rate limit store{at} could not decide"),
            Cause::TimedOut { deadline } => write!(f, "the rate limit store{at} did not answer within {deadline:?}"),
            #[cfg(feature = "redis")]
            Cause::QueueFull(_) => {
                write!(f, "the rate limit store{at} was not asked, as too many requests wait for it")
            }
            Cause::BreakerOpen => {
                write!(f, "the rate limit store{at} was not asked, as it has failed too often of late")
            }
            Cause::NotSupported => write!(
                f,
                "the rate limit store keeps no overrides: use `MemoryStore` or `RedisStore`, or have your store pass \
                 them on to the one that it wraps"
            ),
            Cause::Full { most } => write!(
                f,
                "the rate limit store has {most} overrides, and no more may be set: remove some, or raise \
                 `MemoryStore::max_overrides`"
            ),
            Cause::ChargeCount { given, limits } => write!(
                f,
                "there are {given} charges for {limits} limits: give one for each limit, with a cost of 0 where it \
                 takes nothing; if the limits were replaced at run time, ask `LiveLimits::limits` which there are now"
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            #[cfg(feature = "redis")]
            Cause::Unusable { source, .. } => Some(&**source),
            #[cfg(feature = "redis")]
            Cause::QueueFull(source) => Some(&**source),
            Cause::Failed(source) | Cause::Undecidable(source) => Some(&**source),
            Cause::TimedOut { .. }
            | Cause::BreakerOpen
            | Cause::NotSupported
            | Cause::Full { .. }
            | Cause::ChargeCount { .. } => None,
        }
    }
}
