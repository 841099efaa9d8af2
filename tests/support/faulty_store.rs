//! A store whose calls succeed, fail, hang or panic, as set by a test.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, StoreFuture};
use tower_ratelimit::{MemoryStore, Store, StoreError, Timestamp};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Decides when it is polled for the second time, like a store behind a network.
    Works,
    /// Decides after this time.
    Slow(Duration),
    /// Fails when it is polled for the second time.
    Fails,
    /// Fails because of the request when it is polled for the second time.
    FailsOne,
    /// Fails when it is called.
    FailsAtOnce,
    /// Never decides.
    Hangs,
    Panics,
    /// Returns a cached denial, which says nothing about whether the store works.
    Remembered,
}

/// The calls of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    Decide,
    Peek,
    Refund,
    Reset,
}

/// Clones share their mode and their counts.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    memory: Arc<MemoryStore>,
    name: Option<&'static str>,
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

/// Counts a call as in flight until it is dropped.
struct InFlightCall(FaultyStore, Operation);

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.0.state().under_way[self.1 as usize] -= 1;
    }
}

impl FaultyStore {
    pub fn new(mode: Mode) -> Self {
        Self::over(MemoryStore::new(), mode)
    }

    /// Creates a store that decides in `memory` while it works.
    pub fn over(memory: MemoryStore, mode: Mode) -> Self {
        let state =
            State { modes: [mode; 4], asked: [0; 4], answered: [0; 4], under_way: [0; 4], most_under_way: [0; 4] };
        Self { memory: Arc::new(memory), name: None, state: Arc::new(Mutex::new(state)) }
    }

    pub fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    pub fn set(&self, mode: Mode) {
        self.state().modes = [mode; 4];
    }

    pub fn set_for(&self, op: Operation, mode: Mode) {
        self.state().modes[op as usize] = mode;
    }

    /// Returns the number of calls.
    pub fn asked(&self, op: Operation) -> usize {
        self.state().asked[op as usize]
    }

    /// Returns the number of completed calls.
    pub fn answered(&self, op: Operation) -> usize {
        self.state().answered[op as usize]
    }

    /// Returns the largest number of concurrent calls.
    pub fn most_at_once(&self, op: Operation) -> usize {
        self.state().most_under_way[op as usize]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn answer<T: Send + Unpin + 'static>(
        &self,
        op: Operation,
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
        let under_way = InFlightCall(self.clone(), op);
        let failure = || Err(StoreError::new("redis://secret@10.0.0.7 is gone"));
        if mode == Mode::FailsAtOnce {
            return StoreFuture::ready(failure());
        }
        if mode == Mode::Remembered {
            return memory(&self.memory);
        }
        let answer = matches!(mode, Mode::Works | Mode::Slow(_)).then(|| memory(&self.memory));
        StoreFuture::pending(async move {
            let under_way = under_way;
            match mode {
                Mode::Slow(time) => tokio::time::sleep(time).await,
                Mode::Hangs => pending().await,
                Mode::Panics => panic!("the store panics"),
                Mode::Works | Mode::Fails | Mode::FailsOne | Mode::FailsAtOnce | Mode::Remembered => {
                    tokio::task::yield_now().await;
                }
            }
            under_way.0.state().answered[op as usize] += 1;
            match answer {
                Some(answer) => answer.await,
                None if mode == Mode::FailsOne => Err(StoreError::of_one_request("the key holds something else")),
                None => failure(),
            }
        })
    }
}

impl Store for FaultyStore {
    fn hasher(&self) -> KeyHasher {
        self.memory.hasher()
    }

    fn identity(&self) -> u32 {
        self.memory.identity()
    }

    fn name(&self) -> Option<String> {
        self.name.map(str::to_owned)
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        let operation = if purpose == Purpose::Take { Operation::Decide } else { Operation::Peek };
        self.answer(operation, |memory| {
            let mut answered = charges.clone();
            let at = memory.decide_at_once(&mut answered, purpose).expect("memory decides at once");
            StoreFuture::ready(Ok(Answer::with_charges(at, answered)))
        })
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        let operation = if purpose == Purpose::Take { Operation::Decide } else { Operation::Peek };
        let is_remembered = self.state().modes[operation as usize] == Mode::Remembered;
        is_remembered.then(|| self.memory.decide_at_once(charges, purpose)).flatten()
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.answer(Operation::Refund, |memory| memory.refund(charges))
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.answer(Operation::Reset, |memory| memory.reset(charges))
    }
}
