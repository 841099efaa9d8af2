//! Conditions on requests, and their combination by *and*, *or* and *not*.

use std::borrow::Cow;
use std::fmt;

use crate::key::heads::RequestHead;

/// Decides whether something applies to a request.
///
/// The functions of [`when`](crate::when) return conditions; [`when::from_fn`](crate::when::from_fn) makes one of a
/// closure. A condition is evaluated inline for each request, so it must be fast and must not block.
///
/// ```
/// use tower_ratelimit::RequestHead;
/// use tower_ratelimit::when::Condition;
///
/// /// Holds for requests over HTTP/2 or later.
/// struct IsMultiplexed;
///
/// impl Condition for IsMultiplexed {
///     fn holds(&self, head: &RequestHead<'_>) -> bool {
///         head.version >= http::Version::HTTP_2
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a condition on requests",
    label = "expected a `Condition`",
    note = "wrap a closure in `when::from_fn`: `when::from_fn(|head| head.path() == \"/\")`",
    note = "`tower_ratelimit::when` has conditions on the method, route, path, headers and time of day"
)]
pub trait Condition: Send + Sync + 'static {
    /// Returns whether the condition holds for a request.
    fn holds(&self, head: &RequestHead<'_>) -> bool;

    /// Returns whether the condition holds for at least one reading of a request that is ambiguous because it
    /// [repeats a header](crate::key#repeated-headers).
    ///
    /// Defaults to [`holds`](Self::holds). Override it if the condition reads a header, or clients can evade the
    /// condition by repeating that header. Closures that use [`RequestHead::header`] need no override.
    ///
    /// [`Limit::when`](crate::Limit::when) and [`always_reject`](crate::Builder::always_reject) call this method.
    /// Exemptions such as [`never_limit`](crate::Builder::never_limit) call `holds`.
    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.holds(head)
    }

    /// Writes the condition in words for [explanations](crate::explain), such as `method is POST`. Defaults to `custom
    /// condition`; see also [`label`](Self::label). It should contain no credentials.
    ///
    /// # Errors
    ///
    /// Returns an error only if the formatter does.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("custom condition")
    }

    /// Sets the words in which [explanations](crate::explain) describe the condition.
    ///
    /// ```
    /// use tower_ratelimit::when::{self, Condition};
    /// use tower_ratelimit::{FixedWindow, Limit};
    ///
    /// let guests = when::from_fn(|head| head.header("authorization").is_none()).label("client is a guest");
    /// let limit = Limit::new("guests", FixedWindow::per_day(10)).when(guests);
    /// # let _ = limit;
    /// ```
    fn label(self, label: impl Into<Cow<'static, str>>) -> Labeled<Self>
    where
        Self: Sized,
    {
        Labeled { condition: self, label: label.into() }
    }

    /// Combines two conditions: holds if both hold. Evaluates `other` only if `self` holds.
    fn and<C: Condition>(self, other: C) -> And<Self, C>
    where
        Self: Sized,
    {
        And(self, other)
    }

    /// Combines two conditions: holds if at least one holds. Evaluates `other` only if `self` does not hold.
    fn or<C: Condition>(self, other: C) -> Or<Self, C>
    where
        Self: Sized,
    {
        Or(self, other)
    }
}

/// Negates a condition: holds if `condition` does not.
pub const fn not<A: Condition>(condition: A) -> Not<A> {
    Not(condition)
}

/// A condition that holds if both of two hold. Returned by [`Condition::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B>(A, B);

/// A condition that holds if at least one of two holds. Returned by [`Condition::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(A, B);

/// A condition that holds if another does not. Returned by [`not`].
#[derive(Clone, Copy, Debug)]
pub struct Not<A>(A);

/// A condition with a description of its own. Returned by [`Condition::label`].
#[derive(Clone, Debug)]
pub struct Labeled<C> {
    condition: C,
    label: Cow<'static, str>,
}

impl<A: Condition, B: Condition> Condition for And<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.0.holds(head) && self.1.holds(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.0.may_hold(head) && self.1.may_hold(head)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe(f)?;
        f.write_str(" and ")?;
        self.1.describe(f)
    }
}

impl<A: Condition, B: Condition> Condition for Or<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.0.holds(head) || self.1.holds(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.0.may_hold(head) || self.1.may_hold(head)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        self.0.describe(f)?;
        f.write_str(" or ")?;
        self.1.describe(f)?;
        f.write_str(")")
    }
}

impl<A: Condition> Condition for Not<A> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        !self.0.may_hold(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        !self.0.holds(head)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not (")?;
        self.0.describe(f)?;
        f.write_str(")")
    }
}

impl<C: Condition> Condition for Labeled<C> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.condition.holds(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.condition.may_hold(head)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::when::{from_fn, header};

    #[test]
    fn conditions_combine_as_in_logic() {
        let request = Request::new(());
        let head = RequestHead::of(&request);
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let [one, other] = [a, b].map(|holds| from_fn(move |_| holds));
            assert_eq!(one.and(other).holds(&head), a && b);
            assert_eq!(one.or(other).holds(&head), a || b);
            assert_eq!(not(one).holds(&head), !a);
        }
    }

    #[test]
    fn repeated_headers_stay_ambiguous_through_combinators() {
        let request = Request::get("/").header("x-plan", "pro").header("x-plan", "free").body(()).unwrap();
        let head = RequestHead::of(&request);
        let pro = || header("x-plan", "pro");
        let (always, never) = (from_fn(|_| true), from_fn(|_| false));
        let both = |condition: &dyn Condition| (condition.holds(&head), condition.may_hold(&head));
        assert_eq!(both(&pro()), (false, true));
        assert_eq!(both(&not(pro())), (false, true));
        assert_eq!(both(&not(not(pro()))), (false, true));
        assert_eq!(both(&pro().and(always)), (false, true));
        assert_eq!(both(&pro().and(never)), (false, false));
        assert_eq!(both(&pro().or(always)), (true, true));
        assert_eq!(both(&pro().or(never)), (false, true));
        assert_eq!(both(&header("x-plan", "enterprise")), (false, false));
    }
}
