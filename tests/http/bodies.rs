//! Bodies of requests and responses pass unchanged.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{LeakyBucketQueue, Limit, RateLimitLayer, ResponseBody, key};

use crate::service::{Hello, builder, get, layer, limited, one, per_minute, serve};
use crate::store::paused_store;
use support::answer::{Answer, ask, statuses};

/// A request body that must not be polled.
struct UnpollableBody;

impl Body for UnpollableBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body was polled");
    }
}

#[tokio::test]
async fn the_body_of_a_rejected_request_is_not_read() {
    let requests = [UnpollableBody, UnpollableBody].map(Request::new);
    assert_eq!(statuses(&limited(one()), requests).await, [200, 429]);
}

/// A body with three frames and trailers, of unknown length.
struct Frames<D>(VecDeque<Frame<D>>);

impl<D: From<Bytes>> Frames<D> {
    fn new() -> Self {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "3".parse().unwrap());
        let data = ["one ", "two ", "three"].map(|text| Frame::data(Bytes::from(text).into()));
        Self(data.into_iter().chain([Frame::trailers(trailers)]).collect())
    }
}

impl<D: Buf + Unpin> Body for Frames<D> {
    type Data = D;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<D>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test]
async fn streams_arrive_whole_both_ways() {
    let echo =
        service_fn(async |request: Request<Frames<Bytes>>| Ok::<_, Infallible>(Response::new(request.into_body())));
    let echoed = layer(one()).layer(echo).oneshot(Request::new(Frames::new())).await.unwrap().into_body();
    assert!(!echoed.is_end_stream());
    assert_eq!(echoed.size_hint().exact(), None);
    let collected = echoed.collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "3");
    assert_eq!(collected.to_bytes(), "one two three");
}

/// A type of body data other than `Bytes`.
#[derive(Debug)]
struct Chunk(Bytes);

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }
}

#[tokio::test]
async fn body_data_of_other_types_than_bytes_works() {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Frames::<Chunk>::new())));
    let service = layer(one()).layer(inner);
    assert_eq!(ask(&service, get("/")).await.body, "one two three");
    assert_eq!(ask(&service, get("/")).await.body, "Too many requests: try again in 1 minute.\n");
}

/// A body that fails after its first frame.
struct FailingBody(Option<Bytes>);

impl Body for FailingBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(self.0.take().map(Frame::data).ok_or("torn")))
    }
}

#[tokio::test]
async fn errors_of_the_body_are_passed_on() {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(FailingBody(Some("one".into())))));
    let mut body: ResponseBody<FailingBody> = layer(one()).layer(inner).oneshot(get("/")).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "torn");
}

/// Calls a service whose response body is a `Full`.
async fn full<S>(service: &S) -> Answer
where
    S: Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible> + Clone,
{
    ask(service, get("/")).await
}

#[tokio::test]
async fn the_body_type_is_kept_with_keep_body() {
    let (kept, wrapped) = (layer(one()).keep_body().layer(Hello::default()), limited(one()));
    for is_denied in [false, true] {
        let (answer, expected) = (full(&kept).await, ask(&wrapped, get("/")).await);
        assert_eq!(answer.is_denied(), is_denied);
        assert_eq!(answer.standings().len(), 1);
        assert_eq!((answer.status, answer.headers, answer.body), (expected.status, expected.headers, expected.body));
    }
    let silent = builder(one()).headers([]).build().keep_body().layer(Hello::default());
    assert_eq!(full(&silent).await.headers.len(), 0);
    assert!(full(&silent).await.is_denied());
}

/// The inner service can be borrowed, changed and taken.
#[tokio::test]
async fn keep_body_gives_access_to_the_inner_service() {
    let two = layer(per_minute("two", 2));
    let (first, second) = (Hello::default(), Hello::default());
    let mut service = two.keep_body().layer(first.clone());
    assert!(!full(&service).await.is_denied());
    assert_eq!((service.get_ref().calls(), first.calls()), (1, 1));

    *service.get_mut() = second.clone();
    assert_eq!(service.get_ref().calls(), 0);
    assert!(!full(&service).await.is_denied());
    assert!(full(&service).await.is_denied(), "the limits are unchanged");
    assert_eq!((first.calls(), second.calls()), (1, 1));

    let within = service.into_inner();
    assert!(!full(&within).await.is_denied());
    assert_eq!(second.calls(), 2);
}

/// The body is also unchanged if the request waits for a key or in a queue.
#[tokio::test(start_paused = true)]
async fn the_body_type_is_kept_after_a_wait() {
    let by = key::from_async_fn(|_| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some(1_u64)
    });
    let turns = RateLimitLayer::builder([Limit::new("turns", LeakyBucketQueue::per_second(1).waiting(1)).by(by)]);
    let hello = Hello::default();
    let service = turns.store(paused_store()).build().keep_body().layer(hello.clone());
    let start = tokio::time::Instant::now();
    for (seconds, calls, is_denied) in [(1, 1, false), (3, 2, false), (4, 2, true)] {
        assert_eq!(full(&service).await.is_denied(), is_denied);
        assert_eq!((start.elapsed().as_secs(), hello.calls()), (seconds, calls));
    }
}

#[tokio::test]
async fn the_size_hint_of_the_body_is_kept() {
    let service = limited(one());
    let sizes = async || {
        let mut body = service.clone().oneshot(get("/")).await.unwrap().into_body();
        let before = (body.size_hint().exact(), body.is_end_stream());
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(before, (Some(frame.len() as u64), false));
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
        frame
    };
    assert_eq!(sizes().await, "hello");
    assert_eq!(sizes().await, "Too many requests: try again in 1 minute.\n");
    let empty = ResponseBody::<Full<Bytes>>::default();
    assert!(empty.is_end_stream());
    assert_eq!(Answer::of(Response::new(empty)).await.body, "");
}

/// A body of a rejection, in as many frames of the same text, which counts how often it is polled.
struct ManyFrames {
    text: Bytes,
    frames: usize,
    polls: Arc<AtomicUsize>,
}

impl Body for ManyFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let Some(frames) = self.frames.checked_sub(1) else { return Poll::Ready(None) };
        self.frames = frames;
        Poll::Ready(Some(Ok(Frame::data(self.text.clone()))))
    }
}

/// Returns the body of a rejection, and how often the closure's body was polled.
async fn rejected_with(length: usize, frames: usize) -> (String, usize) {
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = polls.clone();
    let service = serve(builder(one()).on_reject(move |rejection| {
        let body = ManyFrames { text: "a".repeat(length).into(), frames, polls: counted.clone() };
        let response =
            Response::builder().status(rejection.status()).header("content-length", length.saturating_mul(frames));
        response.body(axum::body::Body::new(body)).unwrap()
    }));
    assert!(!ask(&service, get("/")).await.is_denied());
    let answer = ask(&service, get("/")).await;
    assert!(answer.is_denied());
    let is_sent = frames < usize::MAX && answer.body.len() == length * frames;
    assert_eq!(answer.header("content-length").is_some(), is_sent, "the length of the body");
    (answer.body, polls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn the_body_of_a_rejection_is_read_up_to_a_bound() {
    const FRAMES: usize = 1_024;
    const LENGTH: usize = 1 << 20;
    for (length, frames) in [(3, 1), (1_000, FRAMES), (LENGTH, 1), (0, 5)] {
        assert_eq!(rejected_with(length, frames).await, ("a".repeat(length * frames), frames + 1));
    }
    for (length, frames) in [(8, LENGTH / 2), (LENGTH / 2, 3), (LENGTH + 1, 1), (0, usize::MAX)] {
        let (body, polls) = rejected_with(length, frames).await;
        assert!(body.is_empty() && polls <= 1_025, "{polls} polls for {frames} frames of {length} bytes");
    }
}

/// A body from a channel is complete, although it would yield to other tasks.
#[tokio::test]
async fn a_complete_body_of_many_frames_is_read_at_once() {
    struct Channel(tokio::sync::mpsc::Receiver<Bytes>);
    impl Body for Channel {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(context).map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }
    let service = serve(builder(one()).on_reject(|_| {
        let (sender, receiver) = tokio::sync::mpsc::channel(1_000);
        (0..1_000).for_each(|_| sender.try_send("a".into()).unwrap());
        Response::new(axum::body::Body::new(Channel(receiver)))
    }));
    let _ = ask(&service, get("/")).await;
    assert_eq!(ask(&service, get("/")).await.body, "a".repeat(1_000));
}
