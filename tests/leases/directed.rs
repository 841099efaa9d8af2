//! A process that holds a block to the end of its lease, and then another one takes all that there is.

use std::sync::Arc;
use std::time::Duration;

use support::time::MIDNIGHT;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until};
use tower_ratelimit::{Clock, DecidedBy, MemoryStore};

use crate::judge::{KINDS, Kind, Rule};
use crate::world::{Calls, Network, Process, StoreClock};

/// Returns a limit, and a term that is a good part of its period.
fn limit(kind: Kind) -> (Rule, Duration) {
    let (tokens, span) = (200, 1_000_000);
    let rule = match kind {
        Kind::TokenBucket | Kind::LeakyBucket => Rule { kind, tokens, amount: 1_000, span },
        Kind::IntervalBucket => Rule { kind, tokens, amount: 100, span: 100_000 },
        _ => Rule { kind, tokens, amount: 0, span },
    };
    (rule, Duration::from_millis(if kind == Kind::IntervalBucket { 300 } else { 100 }))
}

/// One run. Times are in µs.
struct Run {
    kind: Kind,
    /// How long before midnight the block is taken, on the clock of the store.
    before_midnight: u64,
    /// How long messages of the first process take.
    delay: u64,
    /// When it spends the block.
    spent_after: u64,
}

impl Run {
    /// Returns by how many tokens both processes exceed the limit, and how many were spent without a call.
    fn run(&self) -> (u64, u64) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(self.simulate())
    }

    async fn simulate(&self) -> (u64, u64) {
        let (rule, term) = limit(self.kind);
        let clock = StoreClock::new(MIDNIGHT - self.before_midnight - 10 * self.delay - 1_000, 0);
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        let calls = Arc::<Calls>::default();
        let process = |delay| {
            Process::start(&[rule], term, &store, Network { least: delay, most: delay, lost: 0 }, 1, &calls).limiter
        };
        let (holder, other) = (process(self.delay), process(0));
        // Demand, and a block as large as that.
        let demand = holder.acquire("key", 60).await.unwrap();
        holder.refund(demand.into_receipt()).await.unwrap();
        sleep(Duration::from_micros(6 * self.delay + 1_000)).await;
        let began = Instant::now();
        let first = holder.acquire("key", 1).await.unwrap();
        let (mut admitted, mut spent) = (vec![(first.at().as_micros(), 1)], 0);
        for step in (0..1_500_000).step_by(10_000) {
            sleep_until(began + Duration::from_micros(step)).await;
            while step >= self.spent_after && other.acquire("key", 1).await.unwrap().is_allowed() {
                admitted.push((clock.now().as_micros(), 1));
            }
            if step == self.spent_after {
                loop {
                    let decision = holder.acquire("key", 1).await.unwrap();
                    if decision.decided_by() != DecidedBy::Lease {
                        admitted.extend(decision.is_allowed().then_some((decision.at().as_micros(), 1)));
                        break;
                    }
                    admitted.push((clock.now().as_micros(), 1));
                    spent += 1;
                }
            }
        }
        admitted.sort_unstable();
        (rule.excess(&admitted), spent)
    }
}

#[test]
fn a_block_that_is_held_to_the_end_of_its_lease_exceeds_nothing() {
    for kind in KINDS {
        let (mut spent, mut over) = (0, Vec::new());
        for before_midnight in (5_000..250_000).step_by(60_000) {
            for (delay, spent_after) in
                [0, 20_000].into_iter().flat_map(|delay| (1..32).step_by(3).map(move |step| (delay, step * 10_000)))
            {
                let (excess, by_lease) = Run { kind, before_midnight, delay, spent_after }.run();
                spent += by_lease;
                if excess > 0 {
                    over.push((before_midnight, delay, spent_after, excess));
                }
            }
        }
        assert!(over.is_empty(), "{kind:?}: {over:?}");
        assert!(spent > 200, "{kind:?}: {spent} tokens were spent without a call");
    }
}
