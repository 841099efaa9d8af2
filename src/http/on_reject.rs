//! The responses that closures of `on_reject` return.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use tokio::task::unconstrained;

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
