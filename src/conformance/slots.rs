//! Compares renewals of slots with the algorithm's own state.

use std::time::Duration;

use super::trace::{Random, START, new_key};
use crate::algorithm::{Algorithm, CompactState, Concurrency, KeyState};
use crate::decision::{Charge, Charges, Outcome, Purpose, decide};
use crate::key::Key;
use crate::store::{Answer, Store, StoreFuture};
use crate::time::{Clock, ManualClock, Timestamp};

/// The longest wait of a request for others.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Slots that a request holds, with their marks in the store and in the state that is compared.
struct Taken {
    charges: Charges,
    mark: CompactState,
}

/// Takes, renews and returns slots of one key at random, and compares what is left.
pub(super) async fn compare<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    let store = new_store(clock.clone()).await;
    if store.renew(&Charges::default()).is_none_or(|empty| matches!(empty.into_ready(), Ok(Err(_)))) {
        return;
    }
    let algorithm = Algorithm::from(Concurrency::limit(10).time_to_live(Duration::from_secs(8)));
    let charge = Charge::new(0, "slots", algorithm, &store.hasher());
    let charge = charge.with_key(new_key().hash_with(&store.hasher()), 1);
    let (mut random, mut state, mut taken) = (Random::new(START), KeyState::UNUSED, Vec::<Taken>::new());
    for step in 0..400 {
        let now = clock.now().as_micros();
        match random.below(8) {
            0..4 => {
                let mut charges = Charges::of([charge]);
                answer(store.decide(&mut charges, Purpose::Take, LONGEST_WAIT), &mut charges).await;
                let mut expected = [Outcome::from(charge)];
                decide(&mut expected, std::slice::from_mut(&mut state), now, Purpose::Take);
                let report = |outcome: &Outcome| (outcome.verdict(), outcome.remaining());
                assert_eq!(report(&charges[0]), report(&expected[0]), "in step {step}");
                if expected[0].verdict().is_allowed() {
                    taken.push(Taken { charges, mark: expected[0].mark });
                }
            }
            4 if !taken.is_empty() => {
                let Taken { charges, mark } = taken.swap_remove(random.below(taken.len() as u64) as usize);
                store.refund(&charges).await.expect("a refund");
                state.refund(&algorithm, mark, now, 1);
            }
            5 => {
                // Several of one key at once, of which some have expired.
                let count = random.below(taken.len() as u64 + 1) as usize;
                let mut renewed = Charges::of(taken[..count].iter().map(|taken| taken.charges[0].clone()));
                let renewal = store.renew(&renewed).expect("the store renews slots");
                answer(renewal, &mut renewed).await;
                for (taken, renewed) in taken.iter_mut().zip(renewed.iter()) {
                    state.refund(&algorithm, taken.mark, now, 1);
                    state.charge(&algorithm, now, 1, CompactState::UNUSED);
                    *taken = Taken { charges: Charges::of([renewed.clone()]), mark: state.summary(&algorithm, now) };
                }
            }
            _ => clock.advance(Duration::from_millis(random.below(3_000))),
        }
    }
}

/// Waits for the answer of a store, and copies it into the charges.
async fn answer(answer: StoreFuture<Answer>, charges: &mut Charges) {
    answer.await.expect("an answer").finish(charges);
}
