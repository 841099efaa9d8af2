//! What all limits say of a request, kept where it costs no allocation.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::{fmt, slice};

use super::outcome::Outcome;
use crate::limit_spec::LimitSpec;

/// The outcomes of a request: one, mostly, which lies here; several in a vector that an earlier
/// request on this thread has left, so that they take no allocation either.
///
/// Were several to lie here, it would take longer to move even one about than to decide.
#[derive(Clone, Debug)]
pub(super) enum Outcomes {
    None,
    One(Outcome),
    Several(Several),
    Overridden(Box<Overridden>),
}

/// Outcomes of limits of which some were of another size for this request: seldom any.
#[derive(Clone, Debug)]
pub(super) struct Overridden {
    outcomes: Several,
    spec: Box<[Arc<LimitSpec>]>,
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
        match self {
            Self::None => &[],
            Self::One(outcome) => slice::from_ref(outcome),
            Self::Several(outcomes) => outcomes.as_slice(),
            Self::Overridden(overridden) => overridden.outcomes.as_slice(),
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Outcome] {
        match self {
            Self::None => &mut [],
            Self::One(outcome) => slice::from_mut(outcome),
            Self::Several(outcomes) => outcomes.as_mut_slice(),
            Self::Overridden(overridden) => overridden.outcomes.as_mut_slice(),
        }
    }

    /// Adds spec to those that were noted before, which come first.
    #[cold]
    pub(super) fn overridden(self, spec: &[Arc<LimitSpec>]) -> Self {
        let spec = [self.all_overridden(), spec].concat().into();
        Self::Overridden(Box::new(Overridden { outcomes: self.into_several(), spec }))
    }

    pub(super) fn all_overridden(&self) -> &[Arc<LimitSpec>] {
        if let Self::Overridden(overridden) = self { &overridden.spec } else { &[] }
    }

    #[inline]
    pub(super) fn push(&mut self, outcome: Outcome) {
        match self {
            Self::None => *self = Self::One(outcome),
            Self::One(_) => self.push_second(outcome),
            Self::Several(outcomes) => outcomes.push(outcome),
            Self::Overridden(overridden) => overridden.outcomes.push(outcome),
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
            Self::Overridden(overridden) => overridden.outcomes,
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        match self {
            Self::One(outcome) if !is_kept(outcome) => *self = Self::None,
            Self::Several(outcomes) => outcomes.retain(is_kept),
            Self::Overridden(overridden) => overridden.outcomes.retain(is_kept),
            Self::None | Self::One(_) => {}
        }
    }
}

/// Outcomes in a vector that an earlier request has left.
// Only `drop` takes it, and nothing looks at it after: so all that there is to do then is one call, which is hardly in
// the way of decisions that have none.
pub(crate) struct Several(ManuallyDrop<Vec<Outcome>>);

/// The most vectors that a thread keeps, and the most outcomes that there is room for in one of them.
const SPARES: usize = 64;
const LARGEST: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Vec<Outcome>>> = const { RefCell::new(Vec::new()) };
}

impl Several {
    fn spare() -> Self {
        let mut several = Self::left();
        several.0.clear();
        several
    }

    /// So many, each of which has yet to be written: where it stays, with no call in between that makes room.
    #[inline]
    pub(crate) fn unwritten(len: usize) -> Self {
        let mut several = Self::left();
        // As many as the last had, mostly.
        if several.0.len() != len {
            several.resize(len);
        }
        several
    }

    /// What the last has left.
    #[inline(always)]
    fn left() -> Self {
        // A thread that ends has none any more.
        let left = SPARE.try_with(|spare| spare.borrow_mut().pop());
        Self(ManuallyDrop::new(left.ok().flatten().unwrap_or_else(|| Vec::with_capacity(4))))
    }

    #[cold]
    fn resize(&mut self, len: usize) {
        self.0.resize(len, Outcome::NONE);
    }

    #[inline]
    fn as_slice(&self) -> &[Outcome] {
        &self.0
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Outcome] {
        &mut self.0
    }

    fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }

    fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        self.0.retain(is_kept);
    }
}

impl Clone for Several {
    fn clone(&self) -> Self {
        let mut several = Self::spare();
        several.0.extend_from_slice(self.as_slice());
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
        let outcomes = mem::take(&mut *self.0);
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
