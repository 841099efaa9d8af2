//! The bodies of responses: from the inner service, of rejections, and from closures of `on_reject`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::task::unconstrained;

use super::at_end::AtEnd;

/// The way in which a limiter makes the bodies of its responses: [`WrapBody`] or [`KeepBody`].
pub trait BodyPolicy<R> {
    /// The type of the bodies.
    type Body;

    #[doc(hidden)]
    fn forward(body: R, at_end: AtEnd) -> Self::Body;
    #[doc(hidden)]
    fn reject(text: Bytes) -> Self::Body;
}

/// Wraps the bodies of the inner service in [`ResponseBody`]. Their data has to be `From<Bytes>`.
#[derive(Clone, Copy, Debug)]
pub struct WrapBody;

impl<R: Body<Data: From<Bytes>>> BodyPolicy<R> for WrapBody {
    type Body = ResponseBody<R>;

    fn forward(body: R, mut at_end: AtEnd) -> ResponseBody<R> {
        if at_end.is_awaited() && body.is_end_stream() {
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

    fn forward(body: R, _: AtEnd) -> R {
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

/// A response that a closure of [`on_reject`](crate::Builder::on_reject) can return.
///
/// With the feature `axum`, it is implemented for everything that implements Axum's `IntoResponse`. Otherwise, it is
/// implemented for [`http::Response`] with a body whose data is [`Bytes`], such as a `String`. Axum accepts these too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be returned from `on_reject`",
    label = "not a response",
    note = "with the feature `axum`, return anything that implements `axum::response::IntoResponse`; otherwise, return \
            an `http::Response<String>` or another `http::Response` whose body has `Bytes` as its data"
)]
pub trait IntoRejectionResponse {
    #[doc(hidden)]
    fn into_rejection_response(self, reported: &Reported) -> Response<Bytes>;
}

#[cfg(feature = "axum")]
impl<R: axum::response::IntoResponse> IntoRejectionResponse for R {
    fn into_rejection_response(self, reported: &Reported) -> Response<Bytes> {
        complete(self.into_response(), reported)
    }
}

#[cfg(not(feature = "axum"))]
impl<B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static>
    IntoRejectionResponse for Response<B>
{
    fn into_rejection_response(self, reported: &Reported) -> Response<Bytes> {
        complete(self, reported)
    }
}

/// Whether a body that could not be read was reported. No other crate can name it, so the trait is sealed.
#[derive(Debug, Default)]
pub struct Reported(AtomicBool);

/// The maximum length of a body. It is read in one poll.
const MAX_LEN: usize = 1 << 20;
/// The maximum number of a body's frames, including trailers.
const MAX_FRAMES: usize = 1_024;

/// Reads the body of a response. Removes one that is not complete, or too large, which is logged once.
fn complete<B: Body<Data = Bytes>>(response: Response<B>, Reported(reported): &Reported) -> Response<Bytes> {
    let (mut head, body) = response.into_parts();
    // A body that yields to other tasks would seem incomplete.
    let read = pin!(unconstrained(async {
        let mut body = pin!(body);
        let mut text = Vec::new();
        for _ in 0..=MAX_FRAMES {
            let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await else {
                return Some(text.into());
            };
            if let Ok(data) = frame.ok()?.into_data() {
                if text.len() + data.len() > MAX_LEN {
                    return None;
                }
                text.extend_from_slice(&data);
            }
        }
        None
    }));
    let Poll::Ready(Some(text)) = read.poll(&mut Context::from_waker(Waker::noop())) else {
        head.headers.remove(CONTENT_LENGTH);
        if !reported.swap(true, Ordering::Relaxed) {
            #[cfg(feature = "tracing")]
            tracing::error!(
                "`on_reject` returned a response whose body is not complete, or exceeds 1 MiB or 1,024 frames, so the \
                 response is sent without a body: return text, bytes or JSON"
            );
        }
        return Response::from_parts(head, Bytes::new());
    };
    Response::from_parts(head, text)
}
