//! Policies that depend on the head of a request.

use http::StatusCode;

use crate::policies::example::{accounts, costs, friends, night, plans, rules};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Answer;

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

#[track_caller]
fn is_denied(answer: &Answer, wait: u32) {
    assert!(answer.is_denied());
    assert_eq!(answer.header("retry-after"), Some(wait.to_string().as_str()));
}

/// One post per second, and 150 friends per day.
async fn add_friend(site: &Site, app: &Served) {
    let posts = "\"posts\";r=0;t=1";
    for made in 1..=150 {
        let answer = app.ask("POST /friends", ANN).await;
        assert_eq!((answer.status, answer.remaining_of("friends")), (StatusCode::OK, 150 - made));
        // Requests that are too fast are not charged to the day. A post is not charged to the limit of friends.
        let answer = app.ask("POST /friends", ANN).await;
        // The last request is also denied by the day.
        let wait = if made < 150 { 1 } else { 86_400 - 149 };
        is_denied(&answer, wait);
        assert_eq!(answer.remaining_of("friends"), 150 - made);
        let answer = app.ask("POST /posts", ANN).await;
        is_denied(&answer, 1);
        assert_eq!(answer.all("ratelimit"), [posts]);
        site.later(1);
    }
    // The limit per day denies, so the limit per second is not charged, and a post is allowed at once.
    let answer = app.ask("POST /friends", ANN).await;
    is_denied(&answer, 86_400 - 150);
    assert_eq!((answer.remaining_of("posts"), answer.remaining_of("friends")), (1, 0));
    let answer = app.ask("POST /posts", ANN).await;
    assert_eq!((answer.status, answer.all("ratelimit")), (StatusCode::OK, vec![posts]));
    assert_eq!(app.ask("POST /friends", BOB).await.remaining_of("friends"), 149);
    // At midnight, all tokens are back.
    site.later(86_400 - 150);
    assert_eq!(app.ask("POST /friends", ANN).await.remaining_of("friends"), 149);
}

async fn a_request_is_charged_to_both_limits_or_neither(site: Site) {
    let app = site.serve(friends::app).await;
    add_friend(&site, &app).await;
    assert_eq!(app.ask("POST /friends", &[]).await.status, 400);
}

async fn an_address_creates_at_most_twenty_accounts_a_day(site: Site) {
    let app = site.serve(accounts::app).await;
    let [seven, eight] = ["203.0.113.7", "203.0.113.8"].map(|address| [("x-forwarded-for", address)]);
    for left in (0..20).rev() {
        let answer = app.ask("POST /accounts", &seven).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::CREATED, left));
    }
    let answer = app.ask("POST /accounts", &seven).await;
    is_denied(&answer, 86_400);
    assert_eq!(answer.all("ratelimit-policy"), ["\"accounts\";q=20;w=86400"]);
    assert_eq!(app.count_allowed(21, "POST /accounts", &eight).await, 20);
    for (seconds, allowed) in [(86_399, 0), (1, 20)] {
        site.later(seconds);
        assert_eq!(app.count_allowed(21, "POST /accounts", &seven).await, allowed);
    }
}

/// The client's entries are in front of those that the proxy adds.
async fn a_client_cannot_choose_its_address(site: Site) {
    let app = site.serve(accounts::app).await;
    // An IPv6 network of 64 bits is one client.
    let lists: [fn(u32) -> String; 2] =
        [|made| format!("198.51.100.{made}, 203.0.113.7"), |made| format!("2001:db8::{made:x}")];
    for list in lists {
        for made in 0..25 {
            let answer = app.ask("POST /accounts", &[("x-forwarded-for", &list(made))]).await;
            assert_eq!(answer.status == StatusCode::CREATED, made < 20, "{made}: {answer:?}");
        }
    }
}

async fn writing_costs_two(site: Site) {
    let app = site.serve(costs::app).await;
    for (request, left) in [("POST /users", 8), ("GET /users", 7), ("HEAD /users", 6), ("POST /users", 4)] {
        let answer = app.ask(request, &[]).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, left), "{request}");
        assert_eq!(answer.all("ratelimit-policy"), ["\"users\";q=10;w=10"]);
    }
    assert_eq!(app.count_allowed(3, "GET /users", &[]).await, 3);
    // One token remains, which suffices for reading, but not for writing.
    let answer = app.ask("POST /users", &[]).await;
    is_denied(&answer, 1);
    assert_eq!((answer.remaining(), app.count_allowed(2, "GET /users", &[]).await), (1, 1));
    // One token per second comes back.
    for allowed in [0, 1] {
        site.later(1);
        assert_eq!(app.count_allowed(1, "POST /users", &[]).await, allowed);
    }
}

async fn each_plan_has_its_size_and_staff_is_not_limited(site: Site) {
    let app = site.serve(plans::app).await;
    for (token, size) in [("free-1", 10), ("pro-2", 100), ("enterprise-3", 1_000)] {
        let bearer = format!("Bearer {token}");
        let headers = &[("authorization", bearer.as_str())];
        let answer = app.ask("GET /reports", headers).await;
        assert_eq!(answer.all("ratelimit-policy"), [format!("\"by-plan\";q={size};w=60")]);
        assert_eq!(answer.remaining(), size - 1);
        assert_eq!(app.count_allowed(size as usize, "GET /reports", headers).await, size as usize - 1, "{token}");
        is_denied(&app.ask("GET /reports", headers).await, 60);
    }
    for _ in 0..30 {
        let answer = app.ask("GET /reports", &[("authorization", "Bearer staff-4")]).await;
        assert_eq!((answer.status, answer.header("ratelimit")), (StatusCode::OK, None));
    }
    // Neither a plan nor a name can be claimed. Only the token counts.
    let claims = &[("authorization", "Bearer free-1"), ("x-plan", "enterprise"), ("x-user", "3")];
    assert_eq!(app.count_allowed(1, "GET /reports", claims).await, 0);
    assert_eq!(app.ask("GET /reports", &[]).await.status, 401);
    site.later(60);
    assert_eq!(app.count_allowed(11, "GET /reports", &[("authorization", "Bearer free-1")]).await, 10);
}

async fn at_night_in_japan_a_tenth_of_the_limit_applies(site: Site) {
    let night = night::night().clock(site.fixture.clock.clone());
    let app = site.serve_app(night::app_by_night(site.fixture.store.clone(), night)).await;
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
        is_denied(&answer, 3_600);
        assert_eq!(answer.all("ratelimit-policy"), ["\"searches\";q=10;w=3600"]);
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
