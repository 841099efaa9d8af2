//! The body of a response, whoever has made it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The inner service's body, or that of a refusal.
    ///
    /// It works for every inner body whose data can be made of [`Bytes`], and has that body's
    /// error.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Inner { #[pin] body: B },
        ListAction { text: Bytes },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body } }
    }

    pub(super) fn refusal(text: Bytes) -> Self {
        Self { kind: Kind::ListAction { text } }
    }
}

impl<B> Default for ResponseBody<B> {
    /// An empty body.
    fn default() -> Self {
        Self::refusal(Bytes::new())
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
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(context),
            KindProjection::ListAction { text } if text.is_empty() => Poll::Ready(None),
            KindProjection::ListAction { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text).into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::ListAction { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::ListAction { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
