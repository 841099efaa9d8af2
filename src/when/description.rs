//! Conditions in words, for explanations.

use std::fmt;

use super::condition::Condition;

/// The description of a condition.
pub(crate) struct Description<'a>(pub(crate) &'a dyn Condition);

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe(f)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::key::heads::RequestHead;
    use crate::when;

    #[test]
    fn conditions_describe_themselves() {
        let describe = |condition: &dyn Condition| Description(condition).to_string();
        let login = || when::route("/login");
        for (condition, expected) in [
            (&when::method(Method::POST) as &dyn Condition, "method is POST"),
            (&when::method(Method::GET), "method is GET or HEAD"),
            (&login(), "route is /login"),
            (&when::path_prefix("/api/"), "path is /api or below"),
            (&when::path_prefix("/"), "path is / or below"),
            (&when::header("x-plan", "pro"), "header x-plan is \"pro\""),
            (&when::header("Authorization", "s3cr3t"), "header authorization has the configured value"),
            (&when::header("x-bypass-token", "s3cr3t"), "header x-bypass-token has the configured value"),
            (&when::from_fn(|_| true), "custom condition"),
            (&when::from_fn(|_| true).label("client is a guest"), "client is a guest"),
            (&login().and(when::method(Method::PUT)), "route is /login and method is PUT"),
            (&login().and(login().or(login())), "route is /login and (route is /login or route is /login)"),
            (&when::not(login()), "not (route is /login)"),
        ] {
            assert_eq!(describe(condition), expected);
        }
    }

    #[test]
    fn a_label_does_not_change_when_a_condition_holds() {
        let request = http::Request::get("/").header("x-plan", "pro").header("x-plan", "free").body(()).unwrap();
        let head = RequestHead::of(&request);
        let plan = when::header("x-plan", "pro").label("plan");
        assert_eq!((plan.holds(&head), plan.may_hold(&head)), (false, true));
    }
}
