//! What all limits say of a request, kept where it costs no allocation.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::{fmt, slice};

use super::outcome::Outcome;
use crate::terms::Terms;

/// The outcomes of a request: one, mostly, which lies here; several in a vector that an earlier
/// request on this thread has left, so that they take no allocation either.
///
/// Were several to lie here, it would take longer to move even one about than to decide.
#[derive(Clone, Debug)]
pub(super) enum Outcomes {
    None,
    One(Outcome),
    Several(Several),
}

impl Outcomes {
    /// None yet, of so many `limits`.
    pub(super) fn of(limits: usize) -> Self {
        if limits > 1 { Self::Several(Several::spare()) } else { Self::None }
    }

    /// That of the one limit that there is, mostly.
    #[inline]
    pub(super) fn only(&self) -> Option<&Outcome> {
        if let Self::One(outcome) = self { Some(outcome) } else { None }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Outcome] {
        self.only().map_or_else(|| self.none_or_several(), slice::from_ref)
    }

    // Not inlined, so that where there is one, little else is in the way.
    #[inline(never)]
    fn none_or_several(&self) -> &[Outcome] {
        if let Self::Several(outcomes) = self { outcomes.as_slice() } else { &[] }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Outcome] {
        match self {
            Self::None => &mut [],
            Self::One(outcome) => slice::from_mut(outcome),
            Self::Several(outcomes) => outcomes.as_mut_slice(),
        }
    }

    /// Adds terms to those that were noted before, which come first.
    #[cold]
    pub(super) fn overridden(self, terms: &[Arc<Terms>]) -> Self {
        let overridden = [self.all_overridden(), terms].concat().into();
        let mut several = self.into_several();
        *several.overridden = overridden;
        Self::Several(several)
    }

    pub(super) fn all_overridden(&self) -> &[Arc<Terms>] {
        if let Self::Several(outcomes) = self { &outcomes.overridden } else { &[] }
    }

    #[inline]
    pub(super) fn push(&mut self, outcome: Outcome) {
        match self {
            Self::None => *self = Self::One(outcome),
            Self::One(_) => self.push_second(outcome),
            Self::Several(outcomes) => outcomes.push(outcome),
        }
    }

    fn push_second(&mut self, outcome: Outcome) {
        let mut several = mem::replace(self, Self::None).into_several();
        several.push(outcome);
        *self = Self::Several(several);
    }

    fn into_several(self) -> Several {
        match self {
            Self::None => Several::spare(),
            Self::One(outcome) => {
                let mut several = Several::spare();
                several.push(outcome);
                several
            }
            Self::Several(several) => several,
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        match self {
            Self::One(outcome) if !is_kept(outcome) => *self = Self::None,
            Self::Several(outcomes) => outcomes.retain(is_kept),
            Self::None | Self::One(_) => {}
        }
    }
}

/// Outcomes in a vector, of which an earlier request may have left more: so they are written where they stay, with
/// no call in between that makes room.
// Only `drop` takes its fields, and nothing looks at them after: so all that there is to do then is one call, which is
// hardly in the way of decisions that have none.
pub(crate) struct Several {
    outcomes: ManuallyDrop<Vec<Outcome>>,
    len: usize,
    /// The terms of limits that were of another size for this request: seldom any.
    overridden: ManuallyDrop<Box<[Arc<Terms>]>>,
}

/// The most vectors that a thread keeps, and the most outcomes that there is room for in one of them.
const SPARES: usize = 64;
const LARGEST: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Vec<Outcome>>> = const { RefCell::new(Vec::new()) };
}

impl Several {
    pub(crate) fn spare() -> Self {
        // A thread that ends has none any more.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let outcomes = spare.ok().flatten().unwrap_or_else(|| Vec::with_capacity(4));
        Self { outcomes: ManuallyDrop::new(outcomes), len: 0, overridden: ManuallyDrop::default() }
    }

    #[inline]
    fn as_slice(&self) -> &[Outcome] {
        &self.outcomes[..self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [Outcome] {
        &mut self.outcomes[..self.len]
    }

    fn push(&mut self, outcome: Outcome) {
        *self.add() = outcome;
    }

    /// Adds an outcome that has yet to be written.
    #[inline]
    pub(crate) fn add(&mut self) -> &mut Outcome {
        if self.len == self.outcomes.len() {
            self.outcomes.push(Outcome::NONE);
        }
        self.len += 1;
        &mut self.outcomes[self.len - 1]
    }

    fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        self.outcomes.truncate(self.len);
        self.outcomes.retain(is_kept);
        self.len = self.outcomes.len();
    }
}

impl Clone for Several {
    fn clone(&self) -> Self {
        let mut several = Self::spare();
        self.as_slice().iter().for_each(|outcome| several.push(outcome.clone()));
        several.overridden = self.overridden.clone();
        several
    }
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl Drop for Several {
    #[inline(never)]
    fn drop(&mut self) {
        drop(mem::take(&mut *self.overridden));
        let outcomes = mem::take(&mut *self.outcomes);
        if outcomes.capacity() <= LARGEST {
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARES {
                    spare.push(outcomes);
                }
            });
        }
    }
}
