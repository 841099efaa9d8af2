//! Two or three sizes of one limit that decide side by side, as during a deploy, by clocks that differ.

use std::sync::Arc;

use proptest::prelude::*;
use support::calls::Now;
use support::database::Database;
use support::patient::Patient;
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use crate::clock::NOON;
use support::rule::{Kind, Rule};

/// A process: its limit, and the time by which its clock is behind, in µs.
#[derive(Clone, Copy, Debug)]
struct Process {
    rule: Rule,
    behind: u64,
}

/// A request: the process that decides it, its cost in thousandths of the smallest capacity, and the time before it in
/// µs.
type Request = (prop::sample::Index, u64, u64);

fn processes() -> impl Strategy<Value = Vec<Process>> {
    let kind = prop::sample::select(vec![Kind::Tokens, Kind::TokensAtIntervals, Kind::Meter, Kind::Queue { burst: 3 }]);
    let interval = prop_oneof![1_000u64..=100_000, 100_000u64..=20_000_000];
    let processes = prop::collection::vec((1u32..=100, 1u32..=10, 0u64..=1_000_000), 2..=3);
    (kind, interval, processes).prop_map(|(kind, interval, processes)| {
        let process = |(capacity, amount, behind)| {
            let rule = Rule::Bucket { kind, capacity, amount, interval };
            Process { rule, behind }
        };
        processes.into_iter().map(process).collect()
    })
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let wait = prop_oneof![4 => Just(0u64), 3 => 0u64..=200_000, 1 => 0u64..=5_000_000];
    prop::collection::vec((any::<prop::sample::Index>(), 0u64..=1_000, wait), 1..150)
}

fn limiter(rule: Rule) -> tower_ratelimit::Builder {
    Limiter::builder(Limit::new("deployed", rule.algorithm()))
}

/// Fails if more is admitted in any span than the larger capacity and the faster rate allow. A clock that is behind may
/// have let time stand still before the span.
fn respect_the_larger_size(
    processes: &[Process],
    requests: &[Request],
    mut is_allowed: impl FnMut(usize, u64, u64) -> bool,
) -> Result<(), TestCaseError> {
    let behind = || processes.iter().map(|process| process.behind);
    let apart = behind().max().unwrap_or(0) - behind().min().unwrap_or(0);
    let capacity = |process: &Process| process.rule.capacity();
    let smallest = processes.iter().map(capacity).min().unwrap_or(0);
    let most = |span| processes.iter().map(capacity).max().unwrap_or(0) + most_refilled(processes, span + apart);
    let mut now = NOON;
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    for (which, thousandths, wait) in requests {
        now += wait;
        let (which, cost) = (which.index(processes.len()), (smallest * thousandths / 1_000).max(1));
        if is_allowed(which, now - processes[which].behind, cost) {
            admitted.push((now, cost));
            let mut sum = 0;
            for &(since, cost) in admitted.iter().rev() {
                sum += cost;
                let most = most(now - since);
                prop_assert!(sum <= most, "{sum}, not {most}, in {} µs", now - since);
            }
        }
    }
    Ok(())
}

/// Returns the most tokens that come back within a span at the fastest rate.
fn most_refilled(processes: &[Process], span: u64) -> u64 {
    let refilled = |process: &Process| match process.rule {
        Rule::Bucket { kind: Kind::TokensAtIntervals, amount, interval, .. } => {
            u64::from(amount) * span.div_ceil(interval)
        }
        Rule::Bucket { amount, interval, .. } => u64::from(amount) * span / interval,
        _ => unreachable!("all rules are buckets"),
    };
    processes.iter().map(refilled).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(support::cases(200))]

    #[test]
    fn sizes_side_by_side_in_memory_admit_what_the_larger_one_allows(processes in processes(), requests in requests()) {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        let limiters: Vec<_> =
            processes.iter().map(|process| limiter(process.rule).store(Arc::clone(&store)).build()).collect();
        respect_the_larger_size(&processes, &requests, |which, at, cost| {
            clock.set(Timestamp::from_micros(at));
            limiters[which].acquire("key", cost).now().is_allowed()
        })?;
    }

    #[test]
    fn sizes_side_by_side_in_a_database_admit_what_the_larger_one_allows(
        processes in processes(), requests in requests(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let database = Database::default();
        let limiters: Vec<_> = processes
            .iter()
            .map(|process| {
                let clock = ManualClock::default();
                let database = database.with_clock(clock.clone());
                (clock, limiter(process.rule).store(CasStore::new(database)).patient().build())
            })
            .collect();
        respect_the_larger_size(&processes, &requests, |which, at, cost| {
            let (clock, limiter) = &limiters[which];
            clock.set(Timestamp::from_micros(at));
            runtime.block_on(limiter.acquire("key", cost)).unwrap().is_allowed()
        })?;
    }
}
