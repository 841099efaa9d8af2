//! Policies that depend on the head of a request.

use http::StatusCode;

use crate::policies::example::{accounts, costs, friends, night, plans, rules};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Member;

on_both!(
    a_request_is_charged_to_both_limits_or_neither,
    an_address_creates_at_most_twenty_accounts_a_day,
    a_client_cannot_choose_its_address,
    writing_costs_two,
    each_plan_has_its_size_and_staff_is_not_limited,
    at_night_in_japan_a_tenth_of_the_limit_applies,
    a_rules_file_has_the_same_effect,
);

const ANN: &[(&str, &str)] = &[("x-user", "ann")];
const BOB: &[(&str, &str)] = &[("x-user", "bob")];

/// One post per second, and 150 friends per day.
async fn add_friend(site: &Site, app: &Served) {
    let posts = || Member::new("posts", &[("r", 0), ("t", 1)]);
    for made in 1..=150 {
        let answer = app.ask("POST /friends", ANN).await;
        assert_eq!((answer.status, answer.remaining_of("friends")), (StatusCode::OK, 150 - made));
        // Requests that are too fast are not charged to the day. A post is not charged to the limit of friends.
        let answer = app.ask("POST /friends", ANN).await;
        assert!(answer.is_refused());
        // The last request is also denied by the day.
        let wait = if made < 150 { 1 } else { 86_400 - 149 };
        assert_eq!(answer.header("retry-after"), Some(wait.to_string().as_str()));
        assert_eq!(answer.remaining_of("friends"), 150 - made);
        let answer = app.ask("POST /posts", ANN).await;
        assert!(answer.is_refused());
        assert_eq!(answer.standings(), [posts()]);
        site.later(1);
    }
    // The limit per day denies, so the limit per second is not charged, and a post is allowed at once.
    let answer = app.ask("POST /friends", ANN).await;
    assert!(answer.is_refused());
    assert_eq!(answer.header("retry-after"), Some((86_400 - 150).to_string().as_str()));
    assert_eq!((answer.remaining_of("posts"), answer.remaining_of("friends")), (1, 0));
    let answer = app.ask("POST /posts", ANN).await;
    assert_eq!((answer.status, answer.standings()), (StatusCode::OK, vec![posts()]));
    assert_eq!(app.ask("POST /friends", BOB).await.remaining_of("friends"), 149);
    // At midnight, all tokens are back.
    site.later(86_400 - 150);
    assert_eq!(app.ask("POST /friends", ANN).await.remaining_of("friends"), 149);
}

async fn a_request_is_charged_to_both_limits_or_neither(site: Site) {
    let app = site.serve(friends::app).await;
    add_friend(&site, &app).await;
    assert_eq!(app.ask("POST /friends", &[]).await.status, StatusCode::BAD_REQUEST);
}

async fn an_address_creates_at_most_twenty_accounts_a_day(site: Site) {
    let app = site.serve(accounts::app).await;
    for left in (0..20).rev() {
        let answer = app.ask("POST /accounts", &[("x-forwarded-for", "203.0.113.7")]).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::CREATED, left));
    }
    let answer = app.ask("POST /accounts", &[("x-forwarded-for", "203.0.113.7")]).await;
    assert!(answer.is_refused());
    assert_eq!(answer.header("retry-after"), Some("86400"));
    assert_eq!(answer.policies(), [Member::new("accounts", &[("q", 20), ("w", 86_400)])]);
    assert_eq!(app.count_allowed(21, "POST /accounts", &[("x-forwarded-for", "203.0.113.8")]).await, 20);
    site.later(86_399);
    assert_eq!(app.count_allowed(1, "POST /accounts", &[("x-forwarded-for", "203.0.113.7")]).await, 0);
    site.later(1);
    assert_eq!(app.count_allowed(21, "POST /accounts", &[("x-forwarded-for", "203.0.113.7")]).await, 20);
}

/// The client's entries are in front of those that the proxy adds.
async fn a_client_cannot_choose_its_address(site: Site) {
    let app = site.serve(accounts::app).await;
    for made in 0..25 {
        let list = format!("198.51.100.{made}, 203.0.113.7");
        let answer = app.ask("POST /accounts", &[("x-forwarded-for", &list)]).await;
        assert_eq!(answer.status == StatusCode::CREATED, made < 20, "{made}: {answer:?}");
    }
    // An IPv6 network of 64 bits is one client.
    for made in 0..25 {
        let address = format!("2001:db8::{made:x}");
        let answer = app.ask("POST /accounts", &[("x-forwarded-for", &address)]).await;
        assert_eq!(answer.status == StatusCode::CREATED, made < 20, "{made}: {answer:?}");
    }
}

async fn writing_costs_two(site: Site) {
    let app = site.serve(costs::app).await;
    let policies = [Member::new("users", &[("q", 10), ("w", 10)])];
    for (request, left) in [("POST /users", 8), ("GET /users", 7), ("HEAD /users", 6), ("POST /users", 4)] {
        let answer = app.ask(request, &[]).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, left), "{request}");
        assert_eq!(answer.policies(), policies);
    }
    assert_eq!(app.count_allowed(3, "GET /users", &[]).await, 3);
    // One token remains, which suffices for reading, but not for writing.
    let answer = app.ask("POST /users", &[]).await;
    assert!(answer.is_refused());
    assert_eq!((answer.header("retry-after"), answer.remaining()), (Some("1"), 1));
    assert_eq!(app.count_allowed(2, "GET /users", &[]).await, 1);
    // One token per second comes back.
    site.later(1);
    assert_eq!(app.count_allowed(1, "POST /users", &[]).await, 0);
    site.later(1);
    assert_eq!(app.count_allowed(1, "POST /users", &[]).await, 1);
}

async fn each_plan_has_its_size_and_staff_is_not_limited(site: Site) {
    let app = site.serve(plans::app).await;
    for (token, size) in [("free-1", 10), ("pro-2", 100), ("enterprise-3", 1_000)] {
        let bearer = format!("Bearer {token}");
        let headers = &[("authorization", bearer.as_str())];
        let answer = app.ask("GET /reports", headers).await;
        assert_eq!(answer.policies(), [Member::new("by-plan", &[("q", size), ("w", 60)])], "{token}");
        assert_eq!(answer.remaining(), size - 1);
        assert_eq!(app.count_allowed(size as usize, "GET /reports", headers).await, size as usize - 1, "{token}");
        let answer = app.ask("GET /reports", headers).await;
        assert!(answer.is_refused());
        assert_eq!(answer.header("retry-after"), Some("60"), "{token}");
    }
    for _ in 0..30 {
        let answer = app.ask("GET /reports", &[("authorization", "Bearer staff-4")]).await;
        assert_eq!((answer.status, answer.header("ratelimit")), (StatusCode::OK, None));
    }
    // Neither a plan nor a name can be claimed. Only the token counts.
    let claims = &[("authorization", "Bearer free-1"), ("x-plan", "enterprise"), ("x-user", "3")];
    assert_eq!(app.count_allowed(1, "GET /reports", claims).await, 0);
    assert_eq!(app.ask("GET /reports", &[]).await.status, StatusCode::UNAUTHORIZED);
    site.later(60);
    assert_eq!(app.count_allowed(11, "GET /reports", &[("authorization", "Bearer free-1")]).await, 10);
}

async fn at_night_in_japan_a_tenth_of_the_limit_applies(site: Site) {
    let night = night::night().clock(site.clock.clone());
    let app = site.serve_app(night::app_by_night(site.store.clone(), night)).await;
    let japan = &[("x-user", "ann"), ("cf-ipcountry", "JP")];
    let elsewhere = &[("x-user", "bob"), ("cf-ipcountry", "DE")];
    // In Tokyo it is 9:00. Half past midnight there,
    site.later(15 * 3_600 + 1_800);
    assert_eq!(app.count_allowed(50, "GET /search", japan).await, 50);
    // 1:00 and 5:00,
    for wait in [1_800, 4 * 3_600] {
        site.later(wait);
        assert_eq!(app.count_allowed(11, "GET /search", japan).await, 10);
        let answer = app.ask("GET /search", japan).await;
        assert_eq!(answer.policies(), [Member::new("searches", &[("q", 10), ("w", 3_600)])]);
        assert_eq!(answer.header("retry-after"), Some("3600"));
        assert_eq!(app.count_allowed(101, "GET /search", elsewhere).await, 100);
    }
    // and at 6:00.
    site.later(3_600);
    assert_eq!(app.count_allowed(101, "GET /search", japan).await, 100);
}

async fn a_rules_file_has_the_same_effect(site: Site) {
    // The program reads `examples/limits.yaml`.
    std::env::set_current_dir(support::repository("")).expect("a folder");
    let app = site.serve(rules::app).await;
    add_friend(&site, &app).await;
    let address = &[("x-forwarded-for", "203.0.113.7")];
    let twentieth = app.count_allowed(20, "POST /accounts", address).await;
    assert_eq!((twentieth, app.count_allowed(1, "POST /accounts", address).await), (20, 0));
    for (user, plan, size) in [("1", "free", 10), ("2", "pro", 100)] {
        let headers = &[("x-user", user), ("x-plan", plan)];
        assert_eq!(app.count_allowed(size + 1, "GET /reports", headers).await, size, "{plan}");
    }
    let answer = app.ask("GET /reports", &[("x-user", "3"), ("x-plan", "staff")]).await;
    assert_eq!((answer.status, answer.header("ratelimit")), (StatusCode::OK, None));
}
