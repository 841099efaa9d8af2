//! What is wrong with a file, and where.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    position: Position,
    message: String,
}

impl Problem {
    pub(super) fn new(position: Position, message: impl Into<String>) -> Self {
        Self { position, message: message.into() }
    }

    /// The line, from 1; 0 where it is the file as a whole: it can't be read, for example.
    #[must_use]
    pub fn line(&self) -> usize {
        self.position.line
    }

    /// The character of the line, from 1; 0 where it is the file as a whole.
    #[must_use]
    pub fn column(&self) -> usize {
        self.position.column
    }

    /// What is wrong, and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// A file of rules that was refused, with all that is wrong with it.
///
/// ```
/// use tower_ratelimit::rules::Rules;
///
/// let error = Rules::from_yaml("domain: auth\ndescriptor: []").unwrap_err();
/// assert_eq!(error.to_string(), "2:1: there is no field `descriptor` here: did you mean `descriptors`?");
/// assert_eq!(error.problems()[0].line(), 2);
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct RulesError {
    file: Option<Arc<Path>>,
    problems: Vec<Problem>,
    /// How many more there are.
    more: usize,
}

impl RulesError {
    /// The most problems that are shown: nobody reads more.
    pub(super) const MOST: usize = 100;

    /// Of problems that were found in any order.
    pub(super) fn new(file: Option<Arc<Path>>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.position);
        problems.dedup();
        let more = problems.len().saturating_sub(Self::MOST);
        problems.truncate(Self::MOST);
        Self { file, problems, more }
    }

    /// Of what is wrong with the file as a whole.
    pub(super) fn of_all(file: Option<Arc<Path>>, problem: impl fmt::Display) -> Self {
        Self::new(file, vec![Problem::new(Position::default(), problem.to_string())])
    }

    /// What is wrong, from the first line to the last: at least one problem, and the first hundred
    /// at most.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// A line for each problem: `limits.yaml:7:15: what is wrong: what to do`.
impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { position, message }) in self.problems.iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
            f.write_str(separator)?;
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
            }
            match *position {
                Position { line: 0, .. } if self.file.is_none() => write!(f, "{message}")?,
                Position { line: 0, .. } => write!(f, " {message}")?,
                Position { line, column } => write!(f, "{line}:{column}: {message}")?,
            }
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

/// The text, as `main` shows it that returns this error.
impl fmt::Debug for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RulesError {}
