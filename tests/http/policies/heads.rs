//! Policies that depend on the head of a request.

use http::StatusCode;
use maxminddb::Reader;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};

use crate::policies::example::{accounts, cdn, costs, countries, friends, night, operators, plans, rules};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Answer;
use support::countries::database;

on_both!(
    a_request_is_charged_to_both_limits_or_neither,
    an_address_creates_at_most_twenty_accounts_a_day,
    a_client_cannot_choose_its_address,
    a_client_behind_a_cdn_or_past_it_has_one_bucket,
    networks_are_replaced_and_usage_is_kept,
    invalid_networks_change_nothing,
    each_country_creates_twenty_accounts_an_hour,
    writing_costs_two,
    each_plan_has_its_size_and_staff_is_not_limited,
    a_quota_begins_anew_on_the_billing_day,
    at_night_in_japan_a_tenth_of_the_limit_applies,
    a_rules_file_has_the_same_effect,
    an_operator_explains_a_denial_and_raises_the_limit_for_a_day,
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

/// Returns the number of tokens that a client has left, by what arrives in `X-Forwarded-For`.
async fn left(app: &Served, forwarded: &str) -> i64 {
    app.ask("GET /", &[("x-forwarded-for", forwarded)]).await.remaining()
}

async fn a_client_behind_a_cdn_or_past_it_has_one_bucket(site: Site) {
    let app = site.serve(cdn::app).await;
    // Through two edges of the CDN, with a forged entry, and where `real_ip` has replaced the edge by the client.
    for (made, forwarded) in [
        "203.0.113.7, 192.0.2.1",
        "203.0.113.7, 2001:db8:cd::1",
        "203.0.113.66, 203.0.113.7, 192.0.2.1",
        "203.0.113.7, 203.0.113.7",
        "203.0.113.7",
        // Past the CDN, with entries that look like those of an edge.
        "203.0.113.66, 192.0.2.1, 203.0.113.7",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(left(&app, forwarded).await, 99 - made as i64, "{forwarded}");
    }
    assert_eq!(left(&app, "203.0.113.8, 192.0.2.1").await, 99);
}

async fn networks_are_replaced_and_usage_is_kept(site: Site) {
    let app = site.serve(cdn::app).await;
    assert_eq!(left(&app, "203.0.113.7, 192.0.2.1").await, 99);
    // The clients of an unknown edge share a bucket.
    assert_eq!(left(&app, "203.0.113.7, 198.51.100.1").await, 99);
    assert_eq!(left(&app, "203.0.113.8, 198.51.100.1").await, 98);
    let answer = app.send("PUT /admin/networks", &[], "192.0.2.0/24\n198.51.100.0/24\n").await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "replaced\n"));
    assert_eq!(left(&app, "203.0.113.7, 198.51.100.1").await, 98);
    assert_eq!(left(&app, "203.0.113.8, 198.51.100.1").await, 99);
}

async fn invalid_networks_change_nothing(site: Site) {
    let app = site.serve(cdn::app).await;
    for networks in ["", " \n", "<html>", "198.51.100.0/33", "0.0.0.0/0"] {
        assert_eq!(app.send("PUT /admin/networks", &[], networks).await.status, 400, "{networks}");
    }
    assert_eq!(left(&app, "203.0.113.7, 192.0.2.1").await, 99);
    assert_eq!(left(&app, "203.0.113.7, 192.0.2.2").await, 98);
}

async fn each_country_creates_twenty_accounts_an_hour(site: Site) {
    let networks = [("192.0.2.0/24", "NL"), ("198.51.100.0/24", "BR"), ("2001:db8::/32", "BR")];
    let database = Reader::from_source(database(&networks)).expect("a database");
    let app = site.serve_app(countries::with(database, site.fixture.store.clone())).await;
    let create = async |address: &str| app.ask("POST /accounts", &[("x-forwarded-for", address)]).await;
    let all = [
        // The first and the last address of a network, and another network of the same country.
        &["198.51.100.0", "198.51.100.255", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"][..],
        &["192.0.2.0", "192.0.2.255"],
        // Unknown addresses: before, between and after the networks.
        &["10.0.0.1", "192.0.3.0", "198.51.101.0", "255.255.255.255", "::1", "2001:db9::"],
    ];
    for country in all {
        for (made, address) in country.iter().cycle().take(20).enumerate() {
            let answer = create(address).await;
            assert_eq!((answer.status, answer.remaining()), (StatusCode::CREATED, 19 - made as i64), "{address}");
        }
        for address in country {
            is_denied(&create(address).await, 3_600);
        }
    }
    // The proxy is not the client, and a client can't choose its country.
    is_denied(&create("192.0.3.7, 192.0.2.7").await, 3_600);
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
        let policies = answer.all("ratelimit-policy").join(", ");
        assert!(policies.contains(&format!("\"by-plan\";q={size};w=60")), "{policies}");
        assert_eq!(answer.remaining_of("by-plan"), size - 1);
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

async fn a_quota_begins_anew_on_the_billing_day(site: Site) {
    let app = site.serve(plans::app).await;
    let [free, pro, enterprise] =
        ["Bearer free-1", "Bearer pro-2", "Bearer enterprise-3"].map(|bearer| [("authorization", bearer)]);
    // It is 1 January. The day of `free-1` is the 5th, and that of the others the 15th and the 31st.
    for minute in 0..10 {
        assert_eq!(app.count_allowed(10, "GET /reports", &free).await, 10, "{minute}");
        site.later(60);
    }
    let until_billing_day = 4 * 86_400 - 600;
    is_denied(&app.ask("GET /reports", &free).await, until_billing_day);
    assert_eq!(app.ask("GET /reports", &pro).await.remaining_of("quota"), 9_999);
    assert_eq!(app.ask("GET /reports", &enterprise).await.remaining_of("quota"), 999_999);
    site.later(u64::from(until_billing_day));
    assert_eq!(app.ask("GET /reports", &free).await.remaining_of("quota"), 99);
    assert_eq!(app.ask("GET /reports", &pro).await.remaining_of("quota"), 9_998);
    for (days, left) in [(10, [98, 9_999, 999_998]), (16, [97, 9_998, 999_999]), (28, [99, 9_999, 999_999])] {
        site.later(days * 86_400);
        for (customer, left) in [&free, &pro, &enterprise].into_iter().zip(left) {
            let answer = app.ask("GET /reports", customer).await;
            assert_eq!(answer.remaining_of("quota"), left, "{customer:?} {days} days later");
        }
    }
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

async fn an_operator_explains_a_denial_and_raises_the_limit_for_a_day(site: Site) {
    let app = site.serve(operators::app).await;
    let about_ann = async |method: &str| {
        let answer = app.ask(&format!("{method} /admin/users/ann"), &[]).await;
        assert_eq!(answer.status, 200);
        answer.body
    };
    assert!(about_ann("GET").await.contains("daily: allowed, 99 of 100 left"));
    assert_eq!(app.count_allowed(101, "GET /search", ANN).await, 100);
    let denied = about_ann("GET").await;
    assert!(denied.starts_with("denied, retry after 1 day, "), "{denied}");
    let (_, fingerprint) = denied.trim_end().rsplit_once("fingerprint ").expect("a fingerprint");
    // The log names the key by the fingerprint of the decision.
    let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-user"));
    let limits = RateLimitLayer::builder([daily]).store(site.fixture.store.clone()).build();
    let decision = limits.limit("daily").unwrap().peek("ann", 1).await.unwrap();
    assert_eq!(format!("{:032x}", decision.outcomes()[0].fingerprint()), fingerprint);

    let raised = about_ann("PUT").await;
    assert!(raised.contains("daily: allowed, 899 of 1000 left"), "{raised}");
    assert_eq!(app.ask("GET /search", ANN).await.remaining(), 899);
    assert_eq!(app.ask("GET /search", BOB).await.remaining(), 99);
    site.later(86_400);
    assert_eq!(app.ask("GET /search", ANN).await.remaining(), 99);
}
