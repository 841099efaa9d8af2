//! Rejections of requests, and their messages.

use std::time::Duration;

use http::StatusCode;

use super::values::{Text, push_number};
use crate::key::KeyError;
use crate::recorder::{Reason, Rejection};
use crate::select::ListAction;
use crate::time::ceil_seconds;

/// The default response.
impl Rejection<'_> {
    /// Returns the status of the default response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(KeyError::NotProvided) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::MissingKey(_) => StatusCode::BAD_REQUEST,
            Reason::Listed(action) => action.status().unwrap_or(StatusCode::FORBIDDEN),
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the wait after which the client may retry: the exact one for a denial, and 1 s if the store failed.
    /// `None` if no wait can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Limited { retry_after } => retry_after,
            Reason::MissingKey(_) | Reason::Listed(_) => None,
            Reason::StoreFailed => Some(Duration::from_secs(1)),
        }
    }

    /// Returns the value of `Retry-After`: [`retry_after`](Self::retry_after) with its
    /// [jitter](crate::Builder::retry_after_jitter), in whole seconds, rounded up, at least 1. `None` if no wait can
    /// help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.jittered_wait().map(|wait| ceil_seconds(wait).max(1))
    }

    /// Returns [`retry_after`](Self::retry_after) with its jitter.
    pub(super) fn jittered_wait(&self) -> Option<Duration> {
        self.retry_after().map(|wait| wait.saturating_add(self.jitter))
    }

    /// Returns a message for people. It contains neither keys nor causes of failures.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = Text::new();
        self.push_message(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Adds the message to a text: visible ASCII without anything that JSON or gRPC would escape.
    pub(super) fn push_message(&self, text: &mut Text) {
        let message: &[u8] = match (self.reason, self.retry_after_seconds()) {
            (Reason::Limited { .. }, Some(seconds)) => {
                text.extend_from_slice(b"Too many requests: try again in ");
                push_wait(text, seconds);
                b"."
            }
            (Reason::Limited { .. }, None) => b"Too much for one request: it costs more than its limit allows.",
            (Reason::MissingKey(KeyError::Ambiguous), _) => b"Ambiguous client identifier: send it once.",
            (Reason::MissingKey(KeyError::NotProvided), _) => b"Client address unavailable.",
            (Reason::MissingKey(_), _) => b"Missing client identifier.",
            (Reason::Listed(ListAction::TooManyRequests), _) => b"Too many requests.",
            (Reason::Listed(_), _) => b"The request is not permitted.",
            (Reason::StoreFailed, _) => b"Temporarily unavailable: try again in a moment.",
        };
        text.extend_from_slice(message);
    }
}

/// Adds a number of seconds in its two largest units, such as "7 hours 43 minutes". It is rounded up to the smaller of
/// the two units, so that a client that waits that long never retries too early.
fn push_wait(text: &mut Text, seconds: u64) {
    let [larger, smaller] = in_two_units(seconds);
    push_count(text, larger);
    if smaller.0 > 0 {
        text.push(b' ');
        push_count(text, smaller);
    }
}

fn push_count(text: &mut Text, (count, unit): (u64, &str)) {
    push_number(text, count);
    text.push(b' ');
    text.extend_from_slice(unit.as_bytes());
    if count != 1 {
        text.push(b's');
    }
}

/// Splits a wait into its two largest units, rounded up to the smaller one.
fn in_two_units(seconds: u64) -> [(u64, &'static str); 2] {
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    match seconds {
        0..60 => [(seconds, "second"), (0, "second")],
        60..3_600 => [(seconds / 60, "minute"), (seconds % 60, "second")],
        _ if minutes < 1_440 => [(minutes / 60, "hour"), (minutes % 60, "minute")],
        _ => [(hours / 24, "day"), (hours % 24, "hour")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_formatted_in_their_two_largest_units_rounded_up() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (2, "2 seconds"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (61, "1 minute 1 second"),
            (119, "1 minute 59 seconds"),
            (120, "2 minutes"),
            (125, "2 minutes 5 seconds"),
            (3_599, "59 minutes 59 seconds"),
            (3_600, "1 hour"),
            (3_601, "1 hour 1 minute"),
            (3_660, "1 hour 1 minute"),
            (3_661, "1 hour 2 minutes"),
            (7_200, "2 hours"),
            (27_779, "7 hours 43 minutes"),
            (27_780, "7 hours 43 minutes"),
            (27_781, "7 hours 44 minutes"),
            (86_340, "23 hours 59 minutes"),
            (86_341, "1 day"),
            (86_400, "1 day"),
            (86_401, "1 day 1 hour"),
            (90_000, "1 day 1 hour"),
            (90_001, "1 day 2 hours"),
            (172_799, "2 days"),
            (273_600, "3 days 4 hours"),
            (366 * 86_400, "366 days"),
            (u64::MAX, "213503982334601 days 8 hours"),
        ] {
            let mut formatted = Text::new();
            push_wait(&mut formatted, seconds);
            assert_eq!(formatted[..], *text.as_bytes(), "{seconds}");
        }
    }
}
