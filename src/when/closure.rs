//! Conditions made of closures.

use std::fmt;

use super::condition::Condition;
use crate::key::heads::RequestHead;

/// Makes a condition of a closure that returns whether it holds.
///
/// If the closure reads a [repeated header](crate::key#repeated-headers) by [`RequestHead::header`], the result is
/// ambiguous: the condition [holds](Condition::holds) only for readings without ambiguity, and
/// [may hold](Condition::may_hold) for all others.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, when};
///
/// let guests = Limit::new("guests", FixedWindow::per_day(10))
///     .when(when::from_fn(|head| head.header("authorization").is_none()));
/// # let _ = guests;
/// ```
pub const fn from_fn<F>(holds: F) -> FromFn<F>
where
    F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
{
    FromFn(holds)
}

/// A condition that a closure evaluates. Returned by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

impl<F> Condition for FromFn<F>
where
    F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
{
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        let (holds, is_ambiguous) = head.read_with(&self.0);
        holds && !is_ambiguous
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        let (holds, is_ambiguous) = head.read_with(&self.0);
        holds || is_ambiguous
    }
}
