//! The error of a value that can't be decoded.

use crate::algorithm::DecodeError;
use crate::error::StoreError;

/// Returns the error of a request whose key has an invalid value.
pub(super) fn undecodable(key: &str, error: DecodeError) -> StoreError {
    StoreError::of_one_request(match error {
        DecodeError::Version(version) => format!(
            "the value of `{key}` has version {version}, which this release cannot read: use another prefix while \
             releases differ"
        ),
        DecodeError::Malformed => format!("the value of `{key}` is malformed: does another program write to it?"),
    })
}
