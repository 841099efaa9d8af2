//! The errors of rules files, with their positions.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{ConfigError, Position, RulePosition, printable};

/// One error in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    position: Position,
    message: String,
}

impl Problem {
    pub(super) fn new(position: Position, message: impl ToString) -> Self {
        Self { position, message: printable(&message.to_string()) }
    }

    /// Sets the position of a problem that has none.
    pub(super) fn or_at(self, position: Position) -> Self {
        if self.position == Position::default() { Self { position, ..self } } else { self }
    }

    /// Returns the line, from 1, or 0 if the error concerns the file as a whole, for example if it can't be read.
    #[must_use]
    pub fn line(&self) -> usize {
        self.position.line
    }

    /// Returns the column in characters, from 1, or 0 if the error concerns the file as a whole.
    #[must_use]
    pub fn column(&self) -> usize {
        self.position.column
    }

    /// Returns what is wrong and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// The position is that of the limit that the error concerns, if it is known.
impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        Self { position: error.rule.map(|rule| rule.at).unwrap_or_default(), message: error.message }
    }
}

/// An invalid rules file, with its errors.
///
/// ```
/// use tower_ratelimit::rules::{self, Extractors};
///
/// let error = rules::from_yaml("domain: auth\ndescriptor: []", &Extractors::new()).unwrap_err();
/// assert_eq!(error.to_string(), "2:1: there is no field `descriptor` here: did you mean `descriptors`?");
/// assert_eq!(error.problems()[0].line(), 2);
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct RulesError {
    file: Option<Arc<Path>>,
    problems: Vec<Problem>,
    /// The number of problems that are not listed.
    more: usize,
}

impl RulesError {
    /// The maximum number of problems that are listed.
    const MAX_PROBLEMS: usize = 100;

    /// Creates an error of problems in any order.
    pub(super) fn new(file: Option<Arc<Path>>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.position);
        problems.dedup();
        let more = problems.len().saturating_sub(Self::MAX_PROBLEMS);
        problems.truncate(Self::MAX_PROBLEMS);
        Self { file, problems, more }
    }

    /// Creates an error that concerns the file as a whole.
    pub(super) fn for_file(file: Option<Arc<Path>>, problem: impl ToString) -> Self {
        Self::new(file, vec![Problem::new(Position::default(), problem)])
    }

    /// Returns the problems in the order of their positions: at least one, and at most the first hundred.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// Writes a line for each problem: `limits.yaml:7:15: what is wrong: what to do`.
impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { position, message }) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match &self.file {
                None if position.line == 0 => {}
                Some(file) if position.line == 0 => write!(f, "{}: ", printable(&file.to_string_lossy()))?,
                file => write!(f, "{}: ", RulePosition { file: file.clone(), at: *position })?,
            }
            f.write_str(message)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

/// Writes the same text as `Display`, so that a `main` that returns this error shows it.
impl fmt::Debug for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RulesError {}
