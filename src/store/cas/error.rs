//! The errors of a store other than those of its database.

use std::fmt;

use crate::algorithm::DecodeError;
use crate::error::StoreError;

#[derive(Debug)]
pub(super) enum CasError {
    Aborted,
    ValueCount { keys: usize, values: usize },
    Decode { key: String, error: DecodeError },
}

/// Returns the error of a request whose key has an invalid value.
pub(super) fn undecodable(key: &str, error: DecodeError) -> StoreError {
    StoreError::of_one_request(CasError::Decode { key: key.to_owned(), error })
}

impl fmt::Display for CasError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted => write!(
                f,
                "the task of the request has ended: its Tokio runtime has shut down, or the database's client has panicked"
            ),
            Self::ValueCount { keys, values } => write!(f, "`get_all` returned {values} values for {keys} keys"),
            Self::Decode { key, error: DecodeError::Version(version) } => write!(
                f,
                "the value of `{key}` has version {version}, which this release cannot read: use another prefix while \
                 releases differ"
            ),
            Self::Decode { key, error: DecodeError::Malformed } => {
                write!(f, "the value of `{key}` is malformed: does another program write to it?")
            }
        }
    }
}

impl std::error::Error for CasError {}
