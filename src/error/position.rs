//! Positions in rules files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::printable;

/// The position of a limit in a rules file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RulePosition {
    /// The file, unless the rules were read from text.
    pub(crate) file: Option<Arc<Path>>,
    /// The position in the file or the text.
    pub(crate) at: Position,
}

/// A position in a text.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Position {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
}

/// Writes `limits.yaml:7:15`, or `7:15` without a file.
impl fmt::Display for RulePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", printable(&file.to_string_lossy()))?;
        }
        write!(f, "{}:{}", self.at.line, self.at.column)
    }
}
