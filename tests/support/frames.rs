//! A body of given frames, with any end.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

/// How a body ends after its data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The end is known only when it is polled.
    Polled,
    /// The last frame is known to be the last.
    Known,
    Trailers,
    Failure,
    Panic,
}

/// A body of frames with these lengths.
#[derive(Debug)]
pub struct Frames {
    pub lengths: VecDeque<usize>,
    end: End,
}

impl Frames {
    pub fn new(lengths: &[usize], end: End) -> Self {
        Self { lengths: lengths.iter().copied().collect(), end }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(length) = self.lengths.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'.'; 1_000]).slice(..length)))));
        }
        Poll::Ready(match self.end {
            End::Polled | End::Known => None,
            End::Trailers => {
                self.end = End::Polled;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().expect("a value"));
                Some(Ok(Frame::trailers(trailers)))
            }
            End::Failure => Some(Err("torn")),
            End::Panic => resume_unwind(Box::new("of a body")),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.end == End::Known && self.lengths.is_empty()
    }
}
