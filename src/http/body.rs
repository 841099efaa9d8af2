//! The bodies of responses: from the inner service, and of rejections.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::at_end::AtEnd;

/// The way in which a limiter makes the bodies of its responses: [`WrapBody`] or [`KeepBody`].
pub trait BodyPolicy<R> {
    /// The type of the bodies.
    type Body;

    #[doc(hidden)]
    fn forward(body: R) -> Self::Body;
    #[doc(hidden)]
    fn observe(body: R, at_end: AtEnd) -> Self::Body;
    #[doc(hidden)]
    fn reject(text: Bytes) -> Self::Body;
}

/// Wraps the bodies of the inner service in [`ResponseBody`]. Their data has to be `From<Bytes>`.
#[derive(Clone, Copy, Debug)]
pub struct WrapBody;

impl<R: Body<Data: From<Bytes>>> BodyPolicy<R> for WrapBody {
    type Body = ResponseBody<R>;

    fn forward(body: R) -> ResponseBody<R> {
        ResponseBody { kind: Kind::Inner { body, at_end: AtEnd::default() } }
    }

    fn observe(body: R, mut at_end: AtEnd) -> ResponseBody<R> {
        if body.is_end_stream() {
            at_end.end(true, None);
        }
        ResponseBody { kind: Kind::Inner { body, at_end } }
    }

    fn reject(text: Bytes) -> ResponseBody<R> {
        ResponseBody { kind: Kind::Rejection { text } }
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

    fn observe(body: R, _: AtEnd) -> R {
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
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B, at_end: AtEnd },
        Rejection { text: Bytes },
    }
}

impl<B> Default for ResponseBody<B> {
    /// Creates an empty body.
    fn default() -> Self {
        Self { kind: Kind::Rejection { text: Bytes::new() } }
    }
}

impl<B: Body<Data: From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { mut body, at_end } => {
                let next = body.as_mut().poll_frame(context);
                if at_end.is_awaited()
                    && let Poll::Ready(next) = &next
                {
                    at_end.observe(next.as_ref(), body.is_end_stream());
                }
                next
            }
            KindProjection::Rejection { text } if text.is_empty() => Poll::Ready(None),
            KindProjection::Rejection { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text).into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Rejection { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Rejection { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
