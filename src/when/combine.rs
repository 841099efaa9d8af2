//! Conditions made of conditions.

use super::condition::Condition;
use crate::request::RequestHead;

/// Where both hold. See [`Condition::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B>(pub(super) A, pub(super) B);

/// Where one holds. See [`Condition::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(pub(super) A, pub(super) B);

/// Where another does not hold. See [`not`].
#[derive(Clone, Copy, Debug)]
pub struct Not<A>(A);

/// Where `condition` does not hold.
pub const fn not<A: Condition>(condition: A) -> Not<A> {
    Not(condition)
}

impl<A: Condition, B: Condition> Condition for And<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.0.holds(head) && self.1.holds(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.0.may_hold(head) && self.1.may_hold(head)
    }
}

impl<A: Condition, B: Condition> Condition for Or<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.0.holds(head) || self.1.holds(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.0.may_hold(head) || self.1.may_hold(head)
    }
}

impl<A: Condition> Condition for Not<A> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        !self.0.may_hold(head)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        !self.0.holds(head)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::when::header;

    #[test]
    fn they_combine_as_in_logic() {
        let request = Request::new(());
        let head = RequestHead::of(&request);
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let [one, other] = [a, b].map(|holds| move |_: &RequestHead<'_>| holds);
            assert_eq!(one.and(other).holds(&head), a && b);
            assert_eq!(one.or(other).holds(&head), a || b);
            assert_eq!(not(one).holds(&head), !a);
        }
    }

    #[test]
    fn of_a_repeated_header_the_opposite_of_what_may_hold_does_not_hold() {
        let request = Request::get("/").header("x-plan", "pro").header("x-plan", "free").body(()).unwrap();
        let head = RequestHead::of(&request);
        let pro = || header("x-plan", "pro");
        let (always, never) = (|_: &RequestHead<'_>| true, |_: &RequestHead<'_>| false);
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
