//! The responses that a closure of `on_reject` can return.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use http_body::Body;

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
    fn into_rejection_response(self) -> Response<Bytes>;
}

mod sealed {
    pub trait Sealed {}
}

#[cfg(feature = "axum")]
mod implementation {
    use super::*;

    impl<R: axum::response::IntoResponse> sealed::Sealed for R {}

    impl<R: axum::response::IntoResponse> IntoRejectionResponse for R {
        fn into_rejection_response(self) -> Response<Bytes> {
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
        fn into_rejection_response(self) -> Response<Bytes> {
            self.map(read)
        }
    }
}

/// Reads a body that is complete. Otherwise, logs an error and returns an empty body.
fn read<B: Body<Data = Bytes>>(body: B) -> Bytes {
    let mut body = pin!(body);
    let mut read = Bytes::new();
    loop {
        match body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(None) => return read,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if read.is_empty() => read = data,
                Ok(data) => read = [&*read, &*data].concat().into(),
                Err(_trailers) => {}
            },
            Poll::Ready(Some(Err(_))) | Poll::Pending => {
                #[cfg(feature = "tracing")]
                tracing::error!(
                    "`on_reject` returned a response whose body is not complete, so the response is sent without a body: \
                     return text, bytes or JSON"
                );
                return Bytes::new();
            }
        }
    }
}
