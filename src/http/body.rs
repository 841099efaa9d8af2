//! The bodies of responses from the inner service, and of rejections.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// The way in which a limiter makes the bodies of its responses: [`WrapBody`] or [`KeepBody`].
pub trait BodyPolicy<R> {
    /// The type of the bodies.
    type Body;

    #[doc(hidden)]
    fn forward(body: R) -> Self::Body;
    #[doc(hidden)]
    fn reject(text: Bytes) -> Self::Body;
}

/// Wraps the bodies of the inner service in [`ResponseBody`]. Their data has to be `From<Bytes>`.
#[derive(Clone, Copy, Debug)]
pub struct WrapBody;

impl<R: Body<Data: From<Bytes>>> BodyPolicy<R> for WrapBody {
    type Body = ResponseBody<R>;

    fn forward(body: R) -> ResponseBody<R> {
        ResponseBody { inner: Some(body), text: Bytes::new() }
    }

    fn reject(text: Bytes) -> ResponseBody<R> {
        ResponseBody { inner: None, text }
    }
}

/// Keeps the type of bodies, which has to be `From<Bytes>`: see
/// [`RateLimitLayer::keep_body`](crate::RateLimitLayer::keep_body).
#[derive(Clone, Copy, Debug)]
pub struct KeepBody;

impl<R: From<Bytes>> BodyPolicy<R> for KeepBody {
    type Body = R;

    fn forward(body: R) -> R {
        body
    }

    fn reject(text: Bytes) -> R {
        text.into()
    }
}

pin_project! {
    /// The body of a response from the inner service, or of a rejection.
    ///
    /// Implements [`Body`] for every inner body whose data is `From<Bytes>`, with that body's error type.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // The text of a rejection, if there is no inner body.
        text: Bytes,
    }
}

impl<B> Default for ResponseBody<B> {
    /// Creates an empty body.
    fn default() -> Self {
        Self { inner: None, text: Bytes::new() }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        match this.inner.as_pin_mut() {
            Some(body) => body.poll_frame(context),
            None if this.text.is_empty() => Poll::Ready(None),
            None => Poll::Ready(Some(Ok(Frame::data(std::mem::take(this.text).into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().map_or(self.text.is_empty(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(self.text.len() as u64), Body::size_hint)
    }
}
