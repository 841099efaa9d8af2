//! The end of a response's body, by which a limit can settle.

use std::fmt;

use http::{HeaderMap, StatusCode};

/// The end of a response's body, and what has passed of it: see [`Limit::settle_at_end`](crate::Limit::settle_at_end).
#[derive(Clone, Copy)]
pub struct BodyEnd<'a> {
    pub(crate) status: StatusCode,
    pub(crate) bytes: u64,
    pub(crate) frames: u64,
    pub(crate) trailers: Option<&'a HeaderMap>,
    pub(crate) is_complete: bool,
}

impl<'a> BodyEnd<'a> {
    /// Returns the status of the response. Like the bytes, it does not show whether a gRPC call has failed:
    /// `grpc-status` is in the [trailers](Self::trailers).
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the number of bytes that passed the layer, before outer layers have compressed or encrypted them. The
    /// client may not have received the last of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of frames with data. Each event of Axum's `Sse` is a frame. Tonic puts several messages that
    /// are ready together into one.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the trailers, if there are any and the body has got to them.
    #[must_use]
    pub fn trailers(&self) -> Option<&'a HeaderMap> {
        self.trailers
    }

    /// Returns whether the whole body has passed: its last frame, its trailers, or as many bytes as `Content-Length`
    /// announces. It has not if it failed, if the client disconnected, or if the server sends no body, as for `HEAD`,
    /// although the service returned one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// Leaves out the trailers, which may contain credentials.
impl fmt::Debug for BodyEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, bytes, frames, is_complete, .. } = self;
        write!(f, "BodyEnd({status}, bytes: {bytes}, frames: {frames}, is_complete: {is_complete})")
    }
}
