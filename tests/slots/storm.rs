//! Many requests at a time on several threads, which end at random.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use axum::body::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use support::frames::{End, Frames};
use support::split_mix::Random;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::store::Outcome;
use tower_ratelimit::{FixedWindow, Limit, Permit, ResponseBody, SlotGuard, key};

/// The users, and how many requests each of them may have in flight.
const USERS: usize = 8;
const SLOTS: u32 = 5;
/// How many requests all of them may have in flight.
const ALL_SLOTS: u32 = 24;
/// The number of keys of a rate that denies some requests, and its tokens for each.
const TENANTS: u64 = 100;
const THREADS: u64 = 4;

/// The requests in flight of a user, as the handlers see them.
#[derive(Default)]
struct InFlight {
    now: AtomicU64,
    most: AtomicU64,
    admitted: AtomicU64,
}

struct Guard(Arc<InFlight>);

impl Guard {
    fn new(user: &Arc<InFlight>) -> Self {
        user.admitted.fetch_add(1, Ordering::Relaxed);
        user.most.fetch_max(user.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::Relaxed);
        Self(user.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

const ENDS: [End; 5] = [End::Polled, End::Known, End::Trailers, End::Failure, End::Panic];

/// A body in whose end the request is no longer in flight.
struct Guarded {
    frames: Frames,
    guard: Option<Guard>,
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        let next = Pin::new(&mut self.frames).poll_frame(context);
        let is_data = matches!(&next, Poll::Ready(Some(Ok(frame))) if frame.is_data());
        if !is_data || self.is_end_stream() {
            self.guard = None;
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_end_stream()
    }
}

/// A response that is under way.
enum Open<F, B> {
    Called(Pin<Box<F>>),
    Sent(Pin<Box<B>>),
    Upgraded(#[expect(dead_code, reason = "dropped when the connection ends")] Box<Connection>),
}

/// An upgraded connection.
type Connection = (Guard, Option<SlotGuard>);

#[derive(Clone)]
struct Upgrade(Arc<Mutex<Option<Connection>>>);

/// Whatever happens to requests, no more than allowed are in flight, all slots come back, and exactly those that were
/// admitted are charged. `STORM_REQUESTS` is the number of requests, 100,000 by default.
#[test]
fn slots_and_charges_are_conserved() {
    let requests: u64 = std::env::var("STORM_REQUESTS").map_or(100_000, |count| count.parse().expect("a number"));
    // Every sixth request is denied by this rate, or more.
    let tokens = u32::try_from(requests / TENANTS / 4).unwrap();
    let limits = crate::builder([
        crate::streams(SLOTS),
        Limit::concurrent("all", ALL_SLOTS).by(key::from_fn(|_| Some("ann"))),
        crate::requests(u32::MAX),
        Limit::new("tenants", FixedWindow::per_day(tokens)).by(key::header("x-tenant")),
    ]);
    let limits = limits.permits().build();
    let users: [Arc<InFlight>; USERS] = std::array::from_fn(|_| Arc::default());
    let handler = {
        let users = users.clone();
        service_fn(move |request: Request<()>| {
            let user = |name: &str| request.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
            let mut random = Random(user("x-seed"));
            let mut guard = Some(Guard::new(&users[user("x-user") as usize]));
            let kind = random.below(20);
            if kind == 0 {
                resume_unwind(Box::new("of a service"));
            }
            let upgrade = request.extensions().get::<Upgrade>().cloned();
            let permit = Permit::of(request.extensions()).unwrap();
            async move {
                let mut waits = random.below(4);
                poll_fn(|_| {
                    waits = waits.saturating_sub(1);
                    if waits == 0 { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                match kind {
                    1 => resume_unwind(Box::new("of a handler")),
                    2 => return Err("no response"),
                    3 => *upgrade.unwrap().0.lock().unwrap() = Some((guard.take().unwrap(), permit.hold())),
                    _ => {}
                }
                let (mut frames, mut end) = (random.below(4) as usize, random.one_of(&ENDS));
                if guard.is_none() || kind == 4 {
                    // Without a body.
                    (frames, end, guard) = (0, End::Known, None);
                } else if frames == 0 {
                    end = End::Polled;
                }
                Ok(Response::new(Guarded { frames: Frames::new(&[5; 3][..frames], end), guard }))
            }
        })
    };
    let (admitted, denied) = (AtomicU64::new(0), AtomicU64::new(0));
    let ends: [AtomicU64; 6] = Default::default();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let mut service = limits.layer(handler.clone());
            let (admitted, denied, ends) = (&admitted, &denied, &ends);
            scope.spawn(move || {
                let (mut random, mut context) = (Random(seed), Context::from_waker(Waker::noop()));
                let (mut open, mut begun) = (Vec::<(Open<_, ResponseBody<Guarded>>, Upgrade)>::new(), 0);
                while begun < requests / THREADS || !open.is_empty() {
                    if begun < requests / THREADS && open.len() < 16 && random.below(3) > 0 {
                        begun += 1;
                        let upgrade = Upgrade(Arc::default());
                        let request = Request::get("/").header("x-user", random.below(USERS as u64).to_string());
                        let request = request.header("x-tenant", random.below(TENANTS).to_string());
                        let request = request.header("x-seed", random.next().to_string()).extension(upgrade.clone());
                        let request = request.body(()).unwrap();
                        assert!(Service::<Request<()>>::poll_ready(&mut service, &mut context).is_ready());
                        match catch_unwind(AssertUnwindSafe(|| Box::pin(service.call(request)))) {
                            Ok(future) => open.push((Open::Called(future), upgrade)),
                            Err(_) => drop(ends[0].fetch_add(1, Ordering::Relaxed)),
                        }
                        continue;
                    }
                    if open.is_empty() {
                        continue;
                    }
                    let which = random.below(open.len() as u64) as usize;
                    let (one, upgrade) = &mut open[which];
                    // Cancelled, or a client that disconnects.
                    let mut is_over = random.below(12) == 0;
                    let mut next = None;
                    match one {
                        _ if is_over => drop(ends[1].fetch_add(1, Ordering::Relaxed)),
                        Open::Called(future) => {
                            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
                                Ok(Poll::Pending) => {}
                                Ok(Poll::Ready(Ok(response))) => {
                                    let is_denied = response.status() == 429;
                                    let counter = if is_denied { denied } else { admitted };
                                    counter.fetch_add(1, Ordering::Relaxed);
                                    let upgraded = upgrade.0.lock().unwrap().take();
                                    next = Some(match upgraded {
                                        Some(connection) => Open::Upgraded(Box::new(connection)),
                                        None => Open::Sent(Box::pin(response.into_body())),
                                    });
                                }
                                Ok(Poll::Ready(Err(_))) | Err(_) => {
                                    ends[2].fetch_add(1, Ordering::Relaxed);
                                    is_over = true;
                                }
                            }
                        }
                        Open::Sent(body) => {
                            match catch_unwind(AssertUnwindSafe(|| body.as_mut().poll_frame(&mut context))) {
                                Ok(Poll::Ready(Some(Ok(_)))) => {}
                                Ok(Poll::Ready(None)) => {
                                    ends[3].fetch_add(1, Ordering::Relaxed);
                                    // Sometimes, the body is kept or polled after its end.
                                    is_over = random.below(4) > 0;
                                }
                                _ => {
                                    ends[4].fetch_add(1, Ordering::Relaxed);
                                    is_over = true;
                                }
                            }
                        }
                        Open::Upgraded(_) => {
                            ends[5].fetch_add(1, Ordering::Relaxed);
                            is_over = random.below(4) == 0;
                        }
                    }
                    if let Some(next) = next {
                        *one = next;
                    } else if is_over {
                        open.swap_remove(which);
                    }
                }
            });
        }
    });
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let handled: u64 = users.iter().map(|user| count(&user.admitted)).sum();
    let ends = ends.each_ref().map(count);
    println!(
        "{handled} of {requests} were admitted, {} had a head, {} were denied, {ends:?}",
        count(&admitted),
        count(&denied)
    );
    assert!(handled > requests / 10 && count(&denied) > requests / 100 && ends.iter().all(|count| *count > 100));

    let used = |name: &str, key: String| {
        let state = limits.limit(name).unwrap().peek(key, 0).into_ready().unwrap().unwrap();
        let [only]: &[Outcome] = state.outcomes() else { panic!("one limit is peeked at") };
        only.algorithm().capacity() - only.remaining()
    };
    for (name, user) in users.iter().enumerate() {
        assert_eq!((count(&user.now), used("streams", name.to_string())), (0, 0));
        assert_eq!(used("requests", name.to_string()), count(&user.admitted));
        assert_eq!(count(&user.most), u64::from(SLOTS));
    }
    assert_eq!(used("all", "ann".to_owned()), 0);
    assert_eq!((0..TENANTS).map(|tenant| used("tenants", tenant.to_string())).sum::<u64>(), handled);
}
