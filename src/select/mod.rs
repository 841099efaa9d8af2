//! Which requests a limit or a list applies to: conditions, and how they are combined.

mod list;
#[cfg(feature = "time-zones")]
mod time_of_day;
pub mod when;

use std::borrow::Cow;

pub use self::list::{AddressList, KeyList, ListAction, ListKind};
use crate::key::head::RequestHead;

/// Decides whether something applies to a request.
///
/// The functions of [`when`] return conditions; [`when::from_fn`] makes one of a
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
    note = "`tower_ratelimit::when` has conditions on the method, route, path, host, headers and time of day"
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

    /// Describes the condition in words for [explanations](crate::explain), such as `method is POST`. Defaults to
    /// `custom condition`; see also [`label`](Self::label). It should contain no credentials.
    fn describe(&self) -> String {
        "custom condition".to_owned()
    }

    /// Returns whether the condition holds for all requests of an address family.
    #[doc(hidden)]
    fn covers_family(&self) -> bool {
        false
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
    fn label(self, label: impl Into<Cow<'static, str>>) -> impl Condition
    where
        Self: Sized,
    {
        of_head(label.into(), move |head, is_certain| if is_certain { self.holds(head) } else { self.may_hold(head) })
    }

    /// Combines two conditions: holds if both hold. Evaluates `other` only if `self` holds.
    fn and(self, other: impl Condition) -> impl Condition
    where
        Self: Sized,
    {
        Pair { is_or: false, first: self, second: other }
    }

    /// Combines two conditions: holds if at least one holds. Evaluates `other` only if `self` does not hold.
    fn or(self, other: impl Condition) -> impl Condition
    where
        Self: Sized,
    {
        Pair { is_or: true, first: self, second: other }
    }
}

/// Negates a condition: holds if `condition` does not.
pub const fn not(condition: impl Condition) -> impl Condition {
    Not(condition)
}

/// Two conditions, combined by `or` or by `and`.
struct Pair<A, B> {
    is_or: bool,
    first: A,
    second: B,
}

struct Not<A>(A);

impl<A: Condition, B: Condition> Condition for Pair<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        if self.first.holds(head) == self.is_or { self.is_or } else { self.second.holds(head) }
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        if self.first.may_hold(head) == self.is_or { self.is_or } else { self.second.may_hold(head) }
    }

    fn describe(&self) -> String {
        let (first, second) = (self.first.describe(), self.second.describe());
        if self.is_or { format!("({first} or {second})") } else { format!("{first} and {second}") }
    }
}

impl<A: Condition> Condition for Not<A> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        !self.0.may_hold(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        !self.0.holds(head)
    }

    fn describe(&self) -> String {
        format!("not ({})", self.0.describe())
    }
}

/// Creates a condition with a description. The closure returns whether the condition [holds](Condition::holds) if its
/// second argument is `true`, and otherwise whether it [may hold](Condition::may_hold).
const fn of_head<F>(description: Cow<'static, str>, holds: F) -> OfHead<F>
where
    F: Fn(&RequestHead<'_>, bool) -> bool + Send + Sync + 'static,
{
    OfHead { description, holds }
}

struct OfHead<F> {
    description: Cow<'static, str>,
    holds: F,
}

impl<F> Condition for OfHead<F>
where
    F: Fn(&RequestHead<'_>, bool) -> bool + Send + Sync + 'static,
{
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        (self.holds)(head, true)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        (self.holds)(head, false)
    }

    fn describe(&self) -> String {
        self.description.to_string()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::when::{from_fn, header};
    use super::*;

    #[test]
    fn conditions_combine_as_in_logic() {
        let request = Request::new(());
        let head = RequestHead::of(&request);
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let [one, other] = [a, b].map(|holds| move || from_fn(move |_| holds));
            assert_eq!(one().and(other()).holds(&head), a && b);
            assert_eq!(one().or(other()).holds(&head), a || b);
            assert_eq!(not(one()).holds(&head), !a);
        }
    }

    #[test]
    fn repeated_headers_stay_ambiguous_through_combinators() {
        let request = Request::get("/").header("x-plan", "pro").header("x-plan", "free").body(()).unwrap();
        let head = RequestHead::of(&request);
        let pro = || header("x-plan", "pro");
        let (always, never) = (|| from_fn(|_| true), || from_fn(|_| false));
        let both = |condition: &dyn Condition| (condition.holds(&head), condition.may_hold(&head));
        assert_eq!(both(&pro()), (false, true));
        assert_eq!(both(&not(pro())), (false, true));
        assert_eq!(both(&not(not(pro()))), (false, true));
        assert_eq!(both(&pro().and(always())), (false, true));
        assert_eq!(both(&pro().and(never())), (false, false));
        assert_eq!(both(&pro().or(always())), (true, true));
        assert_eq!(both(&pro().or(never())), (false, true));
        assert_eq!(both(&header("x-plan", "enterprise")), (false, false));
        assert_eq!(both(&pro().label("plan")), (false, true), "a label does not change when a condition holds");
    }
}
