//! A store that does what it is told to: works, dawdles, fails, hangs, panics.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
use tower_ratelimit::{Decision, MemoryStore, Store, StoreError};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Answers, but not at once.
    Works,
    /// Answers after this long.
    Dawdles(Duration),
    /// Fails, but not at once.
    Fails,
    FailsAtOnce,
    /// Never answers.
    Hangs,
    Panics,
    /// Decides from memory, where it would ask: it may work or not.
    Remembers,
}

/// What a store is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Op {
    Acquire,
    Peek,
    Refund,
    Reset,
}

#[derive(Clone, Debug)]
pub(crate) struct Faulty {
    memory: Arc<MemoryStore>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    modes: [Mode; 4],
    asked: [usize; 4],
    answered: [usize; 4],
    under_way: [usize; 4],
    most_under_way: [usize; 4],
}

/// Counts what is under way.
struct UnderWay(Faulty, Op);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state().under_way[self.1 as usize] -= 1;
    }
}

impl Faulty {
    pub(crate) fn new(mode: Mode) -> Self {
        let state =
            State { modes: [mode; 4], asked: [0; 4], answered: [0; 4], under_way: [0; 4], most_under_way: [0; 4] };
        Self { memory: Arc::new(MemoryStore::new()), state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state().modes = [mode; 4];
    }

    pub(crate) fn set_for(&self, op: Op, mode: Mode) {
        self.state().modes[op as usize] = mode;
    }

    /// How often it was asked.
    pub(crate) fn asked(&self, op: Op) -> usize {
        self.state().asked[op as usize]
    }

    /// How often someone has waited for its answer.
    pub(crate) fn answered(&self, op: Op) -> usize {
        self.state().answered[op as usize]
    }

    /// How many of one kind were under way at once.
    pub(crate) fn most_at_once(&self, op: Op) -> usize {
        self.state().most_under_way[op as usize]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn answer<T: Send + Unpin + 'static>(
        &self,
        op: Op,
        memory: impl FnOnce(&MemoryStore) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let mode = {
            let mut state = self.state();
            let index = op as usize;
            state.asked[index] += 1;
            state.under_way[index] += 1;
            state.most_under_way[index] = state.most_under_way[index].max(state.under_way[index]);
            state.modes[index]
        };
        let under_way = UnderWay(self.clone(), op);
        let failure = || Err(StoreError::new("redis://secret@10.0.0.7 is gone"));
        if mode == Mode::FailsAtOnce {
            return StoreFuture::ready(failure());
        }
        if mode == Mode::Remembers {
            return StoreFuture::remembered(
                memory(&self.memory).into_ready().expect("it is there").expect("a decision"),
            );
        }
        let answer = matches!(mode, Mode::Works | Mode::Dawdles(_)).then(|| memory(&self.memory));
        StoreFuture::pending(async move {
            let under_way = under_way;
            match mode {
                Mode::Dawdles(time) => tokio::time::sleep(time).await,
                Mode::Hangs => pending().await,
                Mode::Panics => panic!("the store panics"),
                Mode::Works | Mode::Fails | Mode::FailsAtOnce | Mode::Remembers => tokio::task::yield_now().await,
            }
            under_way.0.state().answered[op as usize] += 1;
            match answer {
                Some(answer) => answer.await,
                None => failure(),
            }
        })
    }
}

impl Store for Faulty {
    fn hasher(&self) -> KeyHasher {
        self.memory.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.answer(Op::Acquire, |memory| memory.decide(charges))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.answer(Op::Peek, |memory| memory.peek(charges))
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        self.answer(Op::Refund, |memory| memory.refund(refunds))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.answer(Op::Reset, |memory| memory.reset(keys))
    }
}
