//! What holds of a request, or does not.

use super::combine::{And, Or};
use crate::request::RequestHead;

/// What holds of a request, or does not. A closure over its head is one.
///
/// It is asked for each request, on the task that serves it: it should be quick, and not block.
pub trait Condition: Send + Sync + 'static {
    /// Whether it holds of a request.
    fn holds(&self, head: &RequestHead<'_>) -> bool;

    /// Whether it holds of at least one reading of a request that can be read in several ways, because a
    /// header is [repeated](crate::key#repeated-headers). Defaults to [`holds`](Self::holds): override it if the condition
    /// reads a header, or a client can evade the condition by repeating that header. Closures that use
    /// [`RequestHead::header`] need not.
    ///
    /// [`Limit::when`](crate::Limit::when) and
    /// [`always_reject`](crate::RateLimitLayer::always_reject) ask this. What is in the client's favour,
    /// such as [`never_limit`](crate::RateLimitLayer::never_limit), asks `holds`.
    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.holds(head)
    }

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
        let (holds, is_ambiguous) = head.read_with(self);
        holds && !is_ambiguous
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        let (holds, is_ambiguous) = head.read_with(self);
        holds || is_ambiguous
    }
}
