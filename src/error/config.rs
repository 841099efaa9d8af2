//! Errors in a configuration.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::fault::Fault;

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
    message: String,
    /// The position of the limit in its rules file, if the error concerns such a limit.
    rule: Option<Arc<RulePosition>>,
}

/// Unwraps `result`, or panics with the error's message at the caller's location.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, ConfigError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl ConfigError {
    /// Creates an error whose message names the invalid value and the remedy.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), rule: None }
    }

    /// Creates the error of a time zone that does not exist.
    #[cfg(feature = "time-zones")]
    pub(crate) fn no_time_zone(zone: &str) -> Self {
        ConfigError::new(format!(
            "there is no time zone {zone:?}: use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
        ))
    }

    /// Sets the position of the limit in its rules file.
    pub(crate) fn at(self, rule: Option<Arc<RulePosition>>) -> Self {
        Self { rule, ..self }
    }

    /// Returns the position of the limit in its rules file, if the error concerns such a limit.
    #[cfg(feature = "rules")]
    pub(crate) fn rule_position(&self) -> Option<&RulePosition> {
        self.rule.as_deref()
    }

    /// Returns the message without the position in a rules file.
    #[cfg(feature = "rules")]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        ConfigError::new(fault.message().as_str())
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.rule {
            write!(f, "{position}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The position of a limit in a rules file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RulePosition {
    /// The file, unless the rules were read from text.
    pub(crate) file: Option<Arc<Path>>,
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
}

/// Writes `limits.yaml:7:15`, or `7:15` without a file.
impl fmt::Display for RulePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
        }
        write!(f, "{}:{}", self.line, self.column)
    }
}
