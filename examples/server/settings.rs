//! Algorithms by name, with their parameters from the query of a URL.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tower_ratelimit::{
    Algorithm, ConfigError, FixedWindow, LeakyBucket, LeakyBucketQueue, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

/// The maximum number of tokens of a parameter. It bounds the length of a log.
const MAX_TOKENS: u32 = 1_000;

/// What a request asks for: an algorithm, and its own cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) algorithm: Algorithm,
    pub(crate) cost: u64,
}

impl Settings {
    /// The names of the algorithms, and their parameters with their defaults.
    pub(crate) const ALGORITHMS: [(&str, &[&str]); 7] = [
        ("fixed-window", &["limit=10", "period=10"]),
        ("sliding-log", &["limit=10", "period=10"]),
        ("sliding-window", &["limit=10", "period=10", "buckets=10"]),
        ("sliding-window-counter", &["limit=10", "period=10", "rounding=up", "weight=100"]),
        ("token-bucket", &["capacity=10", "amount=10", "interval=10", "refill=continuous"]),
        ("leaky-bucket", &["capacity=10", "amount=10", "interval=10"]),
        ("leaky-bucket-queue", &["waiting=5", "burst=0", "amount=10", "interval=10"]),
    ];

    /// Reads the parameters of the algorithm called `name`. Those that are missing have their defaults.
    pub(crate) fn parse(name: &str, query: HashMap<String, String>) -> Result<Self, SettingsError> {
        let mut query = Query(query);
        let algorithm = query.algorithm(name)?;
        let cost = query.number("cost", 1)?;
        match query.0.into_keys().next() {
            None => Ok(Self { algorithm, cost }),
            Some(parameter) => Err(SettingsError::UnknownParameter { parameter, algorithm: name.to_owned() }),
        }
    }
}

/// The parameters that have not been read yet.
struct Query(HashMap<String, String>);

impl Query {
    fn algorithm(&mut self, name: &str) -> Result<Algorithm, SettingsError> {
        Ok(match name {
            "fixed-window" => FixedWindow::try_new(self.tokens("limit", 10)?, self.span("period")?)?.into(),
            "sliding-log" => SlidingLog::try_new(self.tokens("limit", 10)?, self.span("period")?)?.into(),
            "sliding-window" => {
                let window = SlidingWindow::try_new(self.tokens("limit", 10)?, self.span("period")?)?;
                match self.0.contains_key("buckets") {
                    true => window.try_buckets(self.tokens("buckets", 10)?)?.into(),
                    false => window.into(),
                }
            }
            "sliding-window-counter" => {
                let window = SlidingWindowCounter::try_new(self.tokens("limit", 10)?, self.span("period")?)?;
                let rounding = self.choice("rounding", [("up", Rounding::Up), ("down", Rounding::Down)])?;
                window.rounding(rounding).try_weight(self.number("weight", 100)?)?.into()
            }
            "token-bucket" => {
                let bucket =
                    TokenBucket::try_new(self.tokens("capacity", 10)?, self.amount()?, self.span("interval")?)?;
                let at_intervals = self.choice("refill", [("continuous", false), ("interval", true)])?;
                if at_intervals { bucket.try_at_intervals()?.into() } else { bucket.into() }
            }
            "leaky-bucket" => {
                LeakyBucket::try_new(self.tokens("capacity", 10)?, self.amount()?, self.span("interval")?)?.into()
            }
            "leaky-bucket-queue" => {
                let queue =
                    LeakyBucketQueue::try_new(self.tokens("waiting", 5)?, self.amount()?, self.span("interval")?)?;
                let burst = self.number("burst", 0)?;
                if burst == 0 { queue.into() } else { queue.try_burst(Self::check("burst", burst)?)?.into() }
            }
            other => return Err(SettingsError::UnknownAlgorithm { name: other.to_owned() }),
        })
    }

    fn amount(&mut self) -> Result<u32, SettingsError> {
        self.tokens("amount", 10)
    }

    fn tokens(&mut self, parameter: &'static str, default: u32) -> Result<u32, SettingsError> {
        Self::check(parameter, self.number(parameter, default)?)
    }

    fn check(parameter: &'static str, tokens: u32) -> Result<u32, SettingsError> {
        match tokens {
            1..=MAX_TOKENS => Ok(tokens),
            _ => Err(SettingsError::OutOfRange { parameter, tokens }),
        }
    }

    /// Reads a span in seconds, which may have decimals. Defaults to 10 seconds.
    fn span(&mut self, parameter: &'static str) -> Result<Duration, SettingsError> {
        let seconds: f64 = self.number(parameter, 10.0)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| SettingsError::NotASpan { parameter, seconds })
    }

    fn number<T: FromStr>(&mut self, parameter: &'static str, default: T) -> Result<T, SettingsError> {
        let Some(value) = self.0.remove(parameter) else { return Ok(default) };
        value.parse().map_err(|_| SettingsError::NotANumber { parameter, value })
    }

    /// Reads a choice by its word. Defaults to the first.
    fn choice<T: Copy, const N: usize>(
        &mut self,
        parameter: &'static str,
        choices: [(&'static str, T); N],
    ) -> Result<T, SettingsError> {
        let Some(value) = self.0.remove(parameter) else { return Ok(choices[0].1) };
        let chosen = choices.iter().find(|(word, _)| *word == value);
        let words = || choices.iter().map(|(word, _)| *word).collect();
        chosen.map(|(_, choice)| *choice).ok_or_else(|| SettingsError::NotAChoice { parameter, value, words: words() })
    }
}

/// Why a query does not describe an algorithm.
#[derive(Debug)]
pub(crate) enum SettingsError {
    UnknownAlgorithm { name: String },
    UnknownParameter { parameter: String, algorithm: String },
    NotANumber { parameter: &'static str, value: String },
    NotASpan { parameter: &'static str, seconds: f64 },
    NotAChoice { parameter: &'static str, value: String, words: Vec<&'static str> },
    OutOfRange { parameter: &'static str, tokens: u32 },
    Invalid(ConfigError),
}

impl From<ConfigError> for SettingsError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownAlgorithm { name } => write!(f, "there is no algorithm {name:?}: /help lists them"),
            Self::UnknownParameter { parameter, algorithm } => {
                write!(f, "{algorithm} has no parameter {parameter:?}: /help lists them")
            }
            Self::NotANumber { parameter, value } => {
                write!(f, "{parameter} is {value:?}: write a positive number")
            }
            Self::NotASpan { parameter, seconds } => {
                write!(f, "{parameter} is {seconds}: write a positive number of seconds")
            }
            Self::NotAChoice { parameter, value, words } => {
                write!(f, "{parameter} is {value:?}: write {}", words.join(" or "))
            }
            Self::OutOfRange { parameter, tokens } => {
                write!(f, "{parameter} is {tokens}: use 1 to {MAX_TOKENS} on this server")
            }
            Self::Invalid(error) => error.fmt(f),
        }
    }
}
