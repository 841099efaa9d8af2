//! What happens when the body of a response ends.

use std::fmt;
use std::sync::Arc;

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::Frame;

use super::ledger::Ledger;
use crate::limit::BodyEnd;

/// What happens once, when the body of a response ends: when its last frame or its trailers pass, when it fails, or when
/// it is dropped.
///
/// Boxed, so that the bodies for which nothing happens stay small. Counts what passes, and keeps none of it.
pub struct AtEnd {
    /// What has passed until now.
    passed: BodyEnd<'static>,
    /// The bytes that the response announces. A server that has sent them drops the body before its end.
    length: Option<u64>,
    /// The charges to settle. `None` after the end.
    ledger: Option<Arc<Ledger>>,
}

impl AtEnd {
    /// Returns what happens at the end of a response's body, if anything does.
    pub(super) fn of<B>(ledger: &Arc<Ledger>, response: &Response<B>) -> Option<Box<Self>> {
        ledger.settles_at_end().then(|| {
            let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
            let status = response.status();
            let passed = BodyEnd { status, bytes: 0, frames: 0, trailers: None, is_complete: false };
            Box::new(Self { passed, length, ledger: Some(ledger.clone()) })
        })
    }

    /// Observes what the body returns: a frame, which may be the last one, an error, or its end.
    pub(super) fn observe<D: Buf, E>(&mut self, next: Option<&Result<Frame<D>, E>>, is_last: bool) {
        match next {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.passed.bytes += data.remaining() as u64;
                    self.passed.frames += 1;
                }
                if is_last || frame.is_trailers() {
                    self.end(true, frame.trailers_ref());
                }
            }
            Some(Err(_)) => self.end(false, None),
            None => self.end(true, None),
        }
    }

    /// Does what is to be done at the end, unless it has been done.
    pub(super) fn end(&mut self, is_complete: bool, trailers: Option<&HeaderMap>) {
        if let Some(ledger) = self.ledger.take() {
            ledger.adjust_at_end(&BodyEnd { is_complete, trailers, ..self.passed });
        }
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.end(self.length == Some(self.passed.bytes), None);
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtEnd").field(&self.passed).finish()
    }
}
