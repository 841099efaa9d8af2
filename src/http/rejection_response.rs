//! The responses that a closure of `on_reject` can return.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use smallvec::SmallVec;
use tokio::task::unconstrained;

use super::group::ReportOnce;

/// A response that a closure of [`on_reject`](crate::Builder::on_reject) can return.
///
/// With the feature `axum`, it is implemented for everything that implements Axum's `IntoResponse`. Otherwise, it is
/// implemented for [`http::Response`] with a body whose data is [`Bytes`], such as a `String`. Axum accepts these too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be returned from `on_reject`",
    label = "not a response",
    note = "with the feature `axum`, return anything that implements `axum::response::IntoResponse`; otherwise, return an \
            `http::Response<String>` or another `http::Response` whose body has `Bytes` as its data"
)]
pub trait IntoRejectionResponse: sealed::Sealed {
    #[doc(hidden)]
    fn into_rejection_response(self) -> Response<Option<Bytes>>;
}

mod sealed {
    pub trait Sealed {}
}

#[cfg(feature = "axum")]
mod implementation {
    use super::*;

    impl<R: axum::response::IntoResponse> sealed::Sealed for R {}

    impl<R: axum::response::IntoResponse> IntoRejectionResponse for R {
        fn into_rejection_response(self) -> Response<Option<Bytes>> {
            self.into_response().map(read)
        }
    }
}

#[cfg(not(feature = "axum"))]
mod implementation {
    use super::*;

    impl<B: Body<Data = Bytes> + Send + 'static> sealed::Sealed for Response<B> where
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>
    {
    }

    impl<B: Body<Data = Bytes> + Send + 'static> IntoRejectionResponse for Response<B>
    where
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        fn into_rejection_response(self) -> Response<Option<Bytes>> {
            self.map(read)
        }
    }
}

/// The maximum length of a body. It is read in one poll.
const MAX_LEN: usize = 1 << 20;
/// The maximum number of a body's frames, including trailers.
const MAX_FRAMES: usize = 1_024;

/// Reads a body. Returns `None` if it is not complete, or too large.
fn read<B: Body<Data = Bytes>>(body: B) -> Option<Bytes> {
    // A body that yields to other tasks would seem incomplete.
    let read = pin!(unconstrained(async {
        let mut body = pin!(body);
        let (mut frames, mut len) = (SmallVec::<[Bytes; 1]>::new(), 0);
        for _ in 0..=MAX_FRAMES {
            let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await else {
                return if frames.len() > 1 {
                    Some(frames.concat().into())
                } else {
                    Some(frames.pop().unwrap_or_default())
                };
            };
            if let Ok(data) = frame.ok()?.into_data() {
                len += data.len();
                if len > MAX_LEN {
                    return None;
                }
                frames.push(data);
            }
        }
        None
    }));
    match read.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(body) => body,
        Poll::Pending => None,
    }
}

/// Returns a response, without its body if that could not be read, which is logged once.
pub(super) fn complete(response: Response<Option<Bytes>>, reported: &ReportOnce) -> Response<Bytes> {
    let (mut head, body) = response.into_parts();
    if body.is_none() {
        head.headers.remove(CONTENT_LENGTH);
        if reported.is_first() {
            #[cfg(feature = "tracing")]
            tracing::error!(
                "`on_reject` returned a response whose body is not complete, or exceeds 1 MiB or 1,024 frames, so the \
                 response is sent without a body: return text, bytes or JSON"
            );
        }
    }
    Response::from_parts(head, body.unwrap_or_default())
}
