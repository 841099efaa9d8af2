//! What happens when the body of a response ends.

use std::fmt;
use std::sync::Arc;

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::Frame;

use super::ledger::Unsettled;
use crate::engine::Slots;
use crate::limit::BodyEnd;

/// What happens once, when the body of a response ends: when its last frame or its trailers pass, when it fails, or when
/// it is dropped.
#[derive(Debug, Default)]
pub struct AtEnd {
    // Released first, so that another request need not wait for the settlement.
    slots: Option<Arc<Slots>>,
    /// Boxed, so that the bodies for which nothing is settled stay small.
    settlement: Option<Box<Settlement>>,
}

/// The settlement of charges at the end of a body. Counts what passes, and keeps none of it.
pub(super) struct Settlement {
    /// What has passed until now.
    passed: BodyEnd<'static>,
    /// The bytes that the response announces. A server that has sent them drops the body before its end.
    length: Option<u64>,
    ledger: Unsettled,
}

impl AtEnd {
    /// Returns what happens after the head of a response, if anything does.
    #[inline(always)]
    pub(super) fn of(slots: Option<Arc<Slots>>, settlement: Option<Box<Settlement>>) -> Option<Self> {
        if slots.is_none() && settlement.is_none() {
            return None;
        }
        if let Some(slots) = &slots {
            slots.release_at_head();
        }
        Some(Self { slots, settlement })
    }

    /// Returns whether anything happens at the end.
    pub(super) fn is_awaited(&self) -> bool {
        self.slots.is_some() || self.settlement.is_some()
    }

    /// Observes what the body returns: a frame, which may be the last one, an error, or its end.
    pub(super) fn observe<D: Buf, E>(&mut self, next: Option<&Result<Frame<D>, E>>, is_last: bool) {
        match next {
            Some(Ok(frame)) => {
                if let (Some(data), Some(settlement)) = (frame.data_ref(), &mut self.settlement) {
                    settlement.passed.bytes += data.remaining() as u64;
                    settlement.passed.frames += 1;
                }
                if is_last || frame.is_trailers() {
                    self.end(true, frame.trailers_ref());
                }
            }
            Some(Err(_)) => self.end(false, None),
            None => self.end(true, None),
        }
    }

    /// Releases the slots, then settles.
    pub(super) fn end(&mut self, is_complete: bool, trailers: Option<&HeaderMap>) {
        self.slots = None;
        if let Some(Settlement { passed, ledger, .. }) = self.settlement.take().as_deref() {
            ledger.adjust_at_end(&BodyEnd { is_complete, trailers, ..*passed });
        }
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        let is_complete = |settlement: &Settlement| settlement.length == Some(settlement.passed.bytes);
        self.end(self.settlement.as_deref().is_some_and(is_complete), None);
    }
}

impl Settlement {
    /// Returns the settlement of a request by the end of its response's body, if there is one.
    pub(super) fn of<B>(ledger: Unsettled, response: &Response<B>) -> Option<Box<Self>> {
        ledger.settles_at_end().then(|| {
            let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
            let status = response.status();
            let passed = BodyEnd { status, bytes: 0, frames: 0, trailers: None, is_complete: false };
            Box::new(Self { passed, length, ledger })
        })
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Settlement").field(&self.passed).finish()
    }
}
