//! What holds of a request, or does not.

use super::combine::{And, Or};
use crate::request::RequestHead;

/// What holds of a request, or does not. A closure over its head is one.
///
/// It is asked for each request, on the task that serves it: it should be quick, and not block.
pub trait Condition: Send + Sync + 'static {
    /// Whether it holds of a request.
    fn holds(&self, head: &RequestHead<'_>) -> bool;

    /// Where this holds and `other` does. That is not asked where this does not hold.
    fn and<C: Condition>(self, other: C) -> And<Self, C>
    where
        Self: Sized,
    {
        And(self, other)
    }

    /// Where this holds or `other` does. That is not asked where this holds.
    fn or<C: Condition>(self, other: C) -> Or<Self, C>
    where
        Self: Sized,
    {
        Or(self, other)
    }
}

impl<F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static> Condition for F {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self(head)
    }
}
