//! Bounds of calls and of the queue.

use futures_util::future::FutureExt;

use std::sync::Arc;

use super::Queue;
use super::backlog::{CALLS, MAX_BYTES, MAX_KEYS, MAX_REQUESTS};
use super::queue::{BatchSender, Waiting};
use crate::store::redis::RedisConfig;
use crate::store::redis::deployment::Deployment;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{self, Request, Task};

/// Creates the queue of a server that is never called.
fn queue(capacity: usize) -> Arc<Queue> {
    match RedisConfig::node("redis://127.0.0.1:1").queue_capacity(capacity).build() {
        Ok(Deployment::Single(queue)) => queue,
        other => panic!("{other:?}"),
    }
}

/// Creates the same queue, whose requests all wait.
fn busy_queue(capacity: usize) -> Arc<Queue> {
    let queue = queue(capacity);
    queue.backlog().senders = CALLS;
    queue
}

fn request(keys: usize, length: usize) -> Request {
    let mut request = Request::new(Task::Acquire, keys);
    (0..keys).for_each(|_| request.key("k".repeat(length)));
    request
}

/// Queues `requests`. They wait until the result is dropped.
fn wait(queue: &Queue, requests: impl IntoIterator<Item = Request>) -> Vec<Waiting<'_>> {
    let wait = |request| {
        let (ticket, reply) = queue.backlog().push(request);
        Waiting { queue, ticket: Some(ticket), reply }
    };
    requests.into_iter().map(wait).collect()
}

fn usual(requests: usize) -> impl Iterator<Item = Request> {
    (0..requests).map(|_| request(1, 64))
}

fn sender(queue: &Arc<Queue>) -> BatchSender {
    queue.backlog().senders += 1;
    BatchSender { queue: queue.clone(), under_way: 0, is_over: false }
}

/// Returns the number of requests in the next call.
fn next(sender: &mut BatchSender) -> usize {
    sender.next().map_or(0, |(requests, _)| requests.len())
}

#[test]
fn concurrent_calls_become_equally_large() {
    let queue = queue(1_000);
    let (mut long, mut short) = (sender(&queue), sender(&queue));
    let _all = wait(&queue, usual(60));
    assert_eq!(next(&mut long), 60);
    let _more = wait(&queue, usual(4));
    assert_eq!(next(&mut short), 4);
    // All requests that were answered are followed by new ones.
    let _again = wait(&queue, usual(60));
    assert_eq!(next(&mut long), 32);
    let _again = wait(&queue, usual(4));
    assert_eq!(next(&mut short), 32);
}

#[test]
fn calls_are_bounded_by_requests() {
    let queue = queue(1_000);
    let (mut one, mut other) = (sender(&queue), sender(&queue));
    let _all = wait(&queue, usual(300));
    assert_eq!([next(&mut one), next(&mut other), next(&mut one)], [MAX_REQUESTS; 3]);
}

#[test]
fn calls_are_bounded_by_keys() {
    for (keys, requests) in [(1, 64), (4, 64), (5, 51), (64, 4), (129, 1)] {
        let queue = queue(1_000);
        let (mut one, mut other) = (sender(&queue), sender(&queue));
        let _all = wait(&queue, (0..300).map(|_| request(keys, 1)));
        assert_eq!([next(&mut one), next(&mut other), next(&mut one)], [requests; 3], "{keys} keys each");
    }
}

#[test]
fn calls_are_bounded_by_bytes() {
    let queue = queue(1_000);
    let mut sender = sender(&queue);
    let _all = wait(&queue, (0..300).map(|_| request(2, 3_000)));
    assert_eq!(next(&mut sender), MAX_BYTES / 6_005);
}

#[test]
fn an_oversized_request_has_a_call_of_its_own() {
    for large in [request(MAX_KEYS + 1, 1), request(1, MAX_BYTES + 1)] {
        let queue = queue(1_000);
        let mut sender = sender(&queue);
        let _all = wait(&queue, usual(3).chain([large]).chain(usual(3)));
        assert_eq!([0; 4].map(|_| next(&mut sender)), [3, 1, 3, 0]);
    }
}

/// Covers any order of completions, and the cancellation of any requests.
#[test]
fn finished_calls_are_no_longer_counted() {
    let queue = queue(1_000);
    let (mut over, mut dropped) = (sender(&queue), sender(&queue));
    let given_up = wait(&queue, usual(5));
    let _all = wait(&queue, usual(20));
    drop(given_up);
    assert_eq!(next(&mut dropped), 20);
    assert_eq!(queue.backlog().under_way, 20);
    drop(dropped);
    let _all = wait(&queue, usual(7));
    assert_eq!([next(&mut over), next(&mut over)], [7, 0]);
    let backlog = queue.backlog();
    assert_eq!([backlog.under_way, backlog.senders, backlog.waiting.len()], [0; 3]);
}

#[tokio::test]
async fn cancelled_requests_leave_nothing_in_the_queue() {
    let queue = busy_queue(1_000);
    let patient = wait(&queue, usual(3));
    for wave in 0..10 {
        let requests: Vec<_> = usual(997).map(|request| queue.ask(None, request)).collect();
        assert_eq!(queue.backlog().waiting.len(), 1_000, "wave {wave}");
        drop(requests);
        assert_eq!(queue.backlog().waiting.len(), 3, "wave {wave}");
    }
    assert!(patient.iter().all(|waiting| queue.backlog().waiting.contains_key(&waiting.ticket.unwrap())));
}

#[tokio::test]
async fn a_request_to_a_full_queue_fails_at_once() {
    let queue = busy_queue(100);
    let waiting: Vec<_> = usual(100).map(|request| queue.ask(None, request)).collect();
    for _ in 0..1_000 {
        let reply = queue.ask(None, request(1, 64)).now_or_never();
        assert!(matches!(reply, Some(Err(Fault::QueueFull { waiting: 100 }))), "{reply:?}");
    }
    assert_eq!(queue.backlog().waiting.len(), 100);
    drop(waiting);
    assert!(queue.ask(None, request(1, 64)).now_or_never().is_none(), "it waits");
}

/// Without this, requests that were denied elsewhere would stay charged whenever Redis is overloaded.
#[tokio::test]
async fn a_refund_enters_a_full_queue() {
    let queue = busy_queue(100);
    let waiting: Vec<_> = usual(100).map(|request| queue.ask(None, request)).collect();
    let refund = Request::new(Task::Refund, 1);
    assert!(queue.ask(None, refund.clone()).now_or_never().is_none(), "it waits");
    let refund = queue.ask(None, refund);
    assert_eq!(queue.backlog().waiting.len(), 101);
    drop((waiting, refund));
    assert_eq!(queue.backlog().waiting.len(), 0);
}

/// Requests that are never sent together: with a clock of a test, during the move of a slot, or without a runtime.
#[test]
fn calls_of_single_requests_are_bounded_too() {
    let queue = queue(10);
    let clock = Some(script::encode_clock(1));
    let calls: Vec<_> = usual(10).map(|request| queue.ask(clock, request)).collect();
    assert_eq!(queue.backlog().direct, 10);
    let one = request(1, 64);
    for reply in [
        queue.ask(clock, one.clone()).now_or_never(),
        queue.ask(None, one.clone()).now_or_never(),
        queue.ask_importing(None, &one).now_or_never(),
    ] {
        assert!(matches!(reply, Some(Err(Fault::QueueFull { waiting: 10 }))), "{reply:?}");
    }
    drop(calls);
    assert_eq!(queue.backlog().direct, 0);
}
