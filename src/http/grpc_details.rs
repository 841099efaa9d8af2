//! The details of a gRPC status, from which programs read when to retry and which limits are exceeded.
//!
//! They are messages of `google/rpc/status.proto` and `google/rpc/error_details.proto`, in protobuf's binary encoding.
//! They are few and small, so they are encoded by hand, and users need no protobuf library:
//!
//! ```text
//! Status       { int32 code = 1; string message = 2; repeated Any details = 3; }
//! Any          { string type_url = 1; bytes value = 2; }
//! RetryInfo    { Duration retry_delay = 1; }
//! Duration     { int64 seconds = 1; int32 nanos = 2; }
//! QuotaFailure { repeated Violation violations = 1; }
//! Violation    { string subject = 1; string description = 2; }
//! ```

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::HeaderValue;

/// The most violations in one status. Clients accept 8 KiB of headers in all, and a limit's name has up to 64
/// characters.
const MAX_VIOLATIONS: usize = 16;

/// The longest span that a protobuf `Duration` holds, in seconds.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Returns the value of `grpc-status-details-bin`, or `None` if there is neither a wait nor a limit to name.
///
/// Violations name limits, as the `RateLimit` header does, and never keys.
pub(super) fn header(
    code: u64,
    message: &str,
    retry_delay: Option<Duration>,
    violated: &[&str],
) -> Option<HeaderValue> {
    if retry_delay.is_none() && violated.is_empty() {
        return None;
    }
    let mut status = Message::default().integer(1, code).bytes(2, message.as_bytes());
    if let Some(delay) = retry_delay {
        let delay =
            Message::default().integer(1, delay.as_secs().min(MAX_SECONDS)).integer(2, delay.subsec_nanos().into());
        status = status.bytes(3, &any("RetryInfo", &Message::default().bytes(1, &delay.0)));
    }
    if !violated.is_empty() {
        let violations = violated.iter().take(MAX_VIOLATIONS).fold(Message::default(), |failure, name| {
            let violation = Message::default()
                .bytes(1, format!("limit:{name}").as_bytes())
                .bytes(2, format!("Limit \"{name}\" exceeded.").as_bytes());
            failure.bytes(1, &violation.0)
        });
        status = status.bytes(3, &any("QuotaFailure", &violations));
    }
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status.0)).ok()
}

/// Encodes an `Any` that holds a message of the package `google.rpc`.
fn any(name: &str, message: &Message) -> Vec<u8> {
    Message::default().bytes(1, format!("type.googleapis.com/google.rpc.{name}").as_bytes()).bytes(2, &message.0).0
}

/// An encoded message, to which fields are added.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Adds an integer that is not negative. Zero is the default, and left out.
    fn integer(mut self, field: u8, value: u64) -> Self {
        const VARINT: u8 = 0;
        if value != 0 {
            self.0.push(field << 3 | VARINT);
            self.varint(value);
        }
        self
    }

    /// Adds a string, bytes, or an embedded message.
    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        const LENGTH_DELIMITED: u8 = 2;
        self.0.push(field << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds an integer in groups of seven bits, the lowest first; all but the last have the high bit set.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
