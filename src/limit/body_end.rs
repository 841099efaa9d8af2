//! The end of a response's body, by which a limit can settle.

use std::fmt;

use http::{HeaderMap, StatusCode};

/// The end of a response's body, and what has passed of it: see [`Limit::settle_at_end`](crate::Limit::settle_at_end).
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct BodyEnd<'a> {
    /// The status of the response. Like the bytes, it does not show whether a gRPC call has failed: `grpc-status` is in
    /// the [trailers](Self::trailers).
    pub status: StatusCode,
    /// The number of bytes that passed the layer, before outer layers have compressed or encrypted them. The client may
    /// not have received the last of them.
    pub bytes: u64,
    /// The number of frames with data. Each event of Axum's `Sse` is a frame. Tonic puts several messages that are ready
    /// together into one.
    pub frames: u64,
    /// The trailers, if there are any and the body has got to them.
    pub trailers: Option<&'a HeaderMap>,
    /// Whether the whole body has passed: its last frame, its trailers, or as many bytes as `Content-Length` announces.
    /// It has not if it failed, if the client disconnected, or if the server sends no body, as for `HEAD`, although the
    /// service returned one.
    pub is_complete: bool,
}

/// Leaves out the trailers, which may contain credentials.
impl fmt::Debug for BodyEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, bytes, frames, is_complete, .. } = self;
        write!(f, "BodyEnd({status}, bytes: {bytes}, frames: {frames}, is_complete: {is_complete})")
    }
}
