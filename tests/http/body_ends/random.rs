//! Random bodies, many at a time, which are dropped at every frame.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use http_body::Body;
use support::frames::{End, Frames};
use support::split_mix::Random;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::Limit;

use super::used;
use crate::service::{layer, per_day, with};

/// A response that is under way.
struct Open<F, B> {
    future: Option<Pin<Box<F>>>,
    body: Option<Pin<Box<B>>>,
    reserved: u64,
    sent: u64,
}

const RUNS: u64 = 100_000;

/// Whatever happens to a body, the charge is the number of bytes that have passed. Without a head, the estimate stays.
#[tokio::test]
async fn random_bodies_are_charged_what_has_passed() {
    let estimated: Limit = per_day("bytes", u32::MAX)
        .cost_by(|head| head.header("x-cost").unwrap().parse().unwrap())
        .settle_at_end(|end| Some(end.bytes));
    let limits = layer([estimated]);
    let mut service = limits.layer(service_fn(|request: Request<()>| {
        let mut random = Random(request.headers()["x-seed"].to_str().unwrap().parse().unwrap());
        let lengths: Vec<_> = (0..random.below(8)).map(|_| random.below(1_000) as usize).collect();
        let end = random.one_of(&[End::Polled, End::Known, End::Trailers, End::Failure]);
        let waits = random.below(3);
        async move {
            for _ in 0..waits {
                tokio::task::yield_now().await;
            }
            Ok::<_, Infallible>(Response::new(Frames::new(&lengths, end)))
        }
    }));
    let (mut random, mut context) = (Random(1), Context::from_waker(Waker::noop()));
    let (mut open, mut settled, mut ended, mut frames) = (Vec::new(), 0, 0_u64, [0_u64; 10]);
    while ended < RUNS {
        if open.len() < 16 && random.below(3) == 0 {
            let reserved = random.below(2_000);
            let request = with(&[("x-cost", &reserved.to_string()), ("x-seed", &random.below(u64::MAX).to_string())]);
            assert!(Service::<Request<()>>::poll_ready(&mut service, &mut context).is_ready());
            let future = Some(Box::pin(service.call(request)));
            open.push((Open { future, body: None, reserved, sent: 0 }, 0_usize));
            continue;
        }
        if open.is_empty() {
            continue;
        }
        let which = random.below(open.len() as u64) as usize;
        let (one, polls) = &mut open[which];
        let mut is_over = random.below(8) == 0;
        if !is_over {
            if let Some(future) = &mut one.future {
                if let Poll::Ready(response) = future.as_mut().poll(&mut context) {
                    (one.future, one.body) = (None, Some(Box::pin(response.unwrap().into_body())));
                }
            } else if let Some(body) = &mut one.body {
                *polls += 1;
                match body.as_mut().poll_frame(&mut context) {
                    Poll::Ready(Some(Ok(frame))) => one.sent += frame.data_ref().map_or(0, |data| data.len() as u64),
                    // Sometimes, the body is kept or polled after its end.
                    _ => is_over = random.below(4) > 0,
                }
            }
        }
        if is_over {
            let (one, polls) = open.swap_remove(which);
            frames[polls.min(9)] += 1;
            settled += if one.future.is_some() { one.reserved } else { one.sent };
            drop(one);
            ended += 1;
            if ended.is_multiple_of(100) {
                // Those under way are charged what they have reserved, or what they have sent if they have ended.
                let charged = used(&limits).await;
                let least: u64 = open.iter().map(|(one, _)| one.reserved.min(one.sent)).sum();
                let most: u64 = open.iter().map(|(one, _)| one.reserved.max(one.sent)).sum();
                assert!((settled + least..=settled + most).contains(&charged), "{charged} after {ended}");
            }
        }
    }
    for (one, _) in open.drain(..) {
        settled += if one.future.is_some() { one.reserved } else { one.sent };
    }
    println!("{settled} bytes; ends after 0 to 9 polls: {frames:?}");
    assert!(frames[..9].iter().all(|count| *count > 500), "{frames:?}");
    assert_eq!(used(&limits).await, settled);
}
