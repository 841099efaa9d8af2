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
}

impl<A: Condition, B: Condition> Condition for Or<A, B> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.0.holds(head) || self.1.holds(head)
    }
}

impl<A: Condition> Condition for Not<A> {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        !self.0.holds(head)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

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
}
