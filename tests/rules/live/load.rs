//! A thousand replacements under load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tower_ratelimit::{Event, FixedWindow, Limit, LiveLimits, RedisConfig, key, when};

use crate::live::{app, by};
use support::store_fixture::{StoreFixture, get, on_both_stores, user_key};

const REPLACEMENTS: usize = 1_000;
const CLIENTS: usize = 8;
/// The fewest requests per replacement.
const BETWEEN: usize = 3;
const TOKENS: u32 = 2_500;

/// The even and the odd sets share a limit, at different positions, and have one of their own, whose size differs each
/// time.
fn set(number: usize, token: &Arc<()>) -> Vec<Limit> {
    let token = token.clone();
    let shared = Limit::new("shared", FixedWindow::per_day(TOKENS)).by(user_key());
    let (name, header) = if number.is_multiple_of(2) { ("even", "x-even") } else { ("odd", "x-odd") };
    let own = Limit::new(name, FixedWindow::per_day(1_000_000 + number as u32)).by(key::header(header));
    let own = own.when(when::from_fn(move |_| Arc::strong_count(&token) > 0));
    if number.is_multiple_of(2) { vec![own, shared] } else { vec![shared, own] }
}

async fn every_request_goes_by_one_set_and_nothing_is_lost_over_a_thousand_switches(mut fixture: StoreFixture) {
    if let Some(server) = &fixture.server {
        // A slow machine is not an error of a replacement.
        let patient = RedisConfig::node(server.url()).response_timeout(Duration::from_secs(30));
        fixture.store = Arc::new(patient.connect().await.expect("a connection").clock(fixture.clock.clone()));
    }
    let first = Arc::new(());
    let rules = LiveLimits::new(set(0, &first));
    let mut tokens: Vec<Weak<()>> = vec![Arc::downgrade(&first)];
    drop(first);
    let limits = by(&rules, &fixture)
        .observe(|event| {
            if let Event::StoreFailed { error, .. } = event {
                println!("{error:?}");
            }
        })
        .build();
    let app = app(limits);
    let request = || {
        let mut request = get("/", "ann");
        request.headers_mut().insert("x-even", "e".parse().expect("a value"));
        request.headers_mut().insert("x-odd", "o".parse().expect("a value"));
        request
    };
    // The store has connected and initialized.
    support::answer::ask(&app, request()).await;
    let tasks = Handle::current().metrics().num_alive_tasks();

    let (answered, switched) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (app, answered, switched) = (app.clone(), answered.clone(), switched.clone());
            tokio::spawn(async move {
                let (mut allowed, mut sets) = (0, [0; 2]);
                loop {
                    let least = switched.load(Ordering::SeqCst);
                    let is_last = least == REPLACEMENTS;
                    let answer = support::answer::ask(&app, request()).await;
                    answered.fetch_add(1, Ordering::SeqCst);
                    let is_denied = answer.is_denied();
                    let policies = answer.policies();
                    let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
                    let (own, parity) = match names[..] {
                        ["even", "shared"] => (&policies[0], 0),
                        ["shared", "odd"] => (&policies[1], 1),
                        _ => panic!("of two sets: {names:?}"),
                    };
                    let number = (own.get("q").expect("a size") - 1_000_000) as usize;
                    assert_eq!(number % 2, parity, "{policies:?}");
                    assert!(number >= least, "it came after the switch to {least}, and goes by {number}");
                    let standings = answer.standings();
                    let reported: Vec<&str> = standings.iter().map(|standing| standing.name.as_str()).collect();
                    assert_eq!(reported, names);
                    sets[parity] += 1;
                    allowed += u32::from(!is_denied);
                    if is_last && is_denied {
                        return (allowed, sets);
                    }
                }
            })
        })
        .collect();
    for number in 1..=REPLACEMENTS {
        while answered.load(Ordering::SeqCst) < number * BETWEEN {
            assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a client has failed");
            tokio::task::yield_now().await;
        }
        let token = Arc::new(());
        tokens.push(Arc::downgrade(&token));
        rules.replace(set(number, &token)).expect("the limits are valid");
        switched.store(number, Ordering::SeqCst);
    }
    let (mut allowed, mut sets) = (1, [0; 2]);
    for client in clients {
        let (more, of) = client.await.expect("a client");
        allowed += more;
        sets = [sets[0] + of[0], sets[1] + of[1]];
    }
    assert_eq!(allowed, TOKENS, "the unchanged limit admitted exactly its tokens");
    assert!(sets.iter().all(|count| *count > REPLACEMENTS / 4), "both sets of limits were used: {sets:?}");

    // The layer keeps the limits with which it was built.
    let alive: Vec<usize> =
        (0..=REPLACEMENTS).filter(|number| tokens[*number].upgrade().is_some()).filter(|number| *number != 0).collect();
    assert_eq!(alive, [REPLACEMENTS], "only the last limits are in memory");
    let started = std::time::Instant::now();
    while Handle::current().metrics().num_alive_tasks() > tasks {
        assert!(started.elapsed().as_secs() < 20, "tasks were left: {:?}", Handle::current().metrics());
        tokio::task::yield_now().await;
    }
}

on_both_stores!(every_request_goes_by_one_set_and_nothing_is_lost_over_a_thousand_switches);
