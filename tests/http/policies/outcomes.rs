//! Policies that depend on the response to a request.

use std::net::Ipv4Addr;

use futures_util::future::join_all;
use http::StatusCode;
use tower_ratelimit::SlidingLog;

use crate::policies::example::{logins, payments};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Answer;

on_both!(
    only_failed_payments_count,
    only_failed_logins_count,
    an_account_is_locked_out_for_longer_each_time,
    attempts_at_a_locked_account_count_under_the_address,
    a_valid_login_ends_the_failures_of_the_account,
    logins_at_once_check_five_guesses_and_lock_no_valid_account_out,
);

async fn pay(app: &Served, device: &str, card: &str) -> Answer {
    app.send_json("POST /payments", &[("x-device", device)], &format!(r#"{{"card": "{card}"}}"#)).await
}

async fn only_failed_payments_count(site: Site) {
    let app = site.serve(payments::app).await;
    for left in (0..5).rev() {
        // Successful payments do not count.
        for _ in 0..3 {
            assert_eq!(pay(&app, "d1", "4242").await.status, 200);
            site.comes_back("failed-payments", SlidingLog::per_day(5), "d1", left + 1).await;
        }
        let answer = pay(&app, "d1", "0000").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::PAYMENT_REQUIRED, left as i64));
        site.later(60);
    }
    for card in ["0000", "4242"] {
        let answer = pay(&app, "d1", card).await;
        assert!(answer.is_denied());
        // Denied until the first failure is a day old.
        assert_eq!((answer.remaining(), answer.header("retry-after")), (0, Some("86100")), "{card}");
    }
    assert_eq!(pay(&app, "d2", "4242").await.status, 200);
    site.later(86_100);
    assert_eq!(pay(&app, "d1", "0000").await.status, 402);
    assert!(pay(&app, "d1", "4242").await.is_denied());
}

async fn log_in(app: &Served, account: &str, password: &str) -> Answer {
    app.send_json("POST /login", &[], &format!(r#"{{"account": "{account}", "password": "{password}"}}"#)).await
}

async fn only_failed_logins_count(site: Site) {
    let app = site.serve(logins::app).await;
    for made in 0..20 {
        // Successful logins don't count under the address.
        assert_eq!(log_in(&app, "bob", "open sesame").await.status, 200);
        site.comes_back("failed-logins", SlidingLog::per_hour(20), Ipv4Addr::LOCALHOST, 20 - made).await;
        let answer = log_in(&app, &format!("account {made}"), "guess").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::UNAUTHORIZED, 19 - made as i64));
    }
    // A valid login does not reset the address.
    let answer = log_in(&app, "bob", "open sesame").await;
    assert!(answer.is_denied());
    assert_eq!(answer.header("retry-after"), Some("3600"));
    site.later(3_600);
    assert_eq!(log_in(&app, "bob", "open sesame").await.status, 200);
}

async fn an_account_is_locked_out_for_longer_each_time(site: Site) {
    let app = site.serve(logins::app).await;
    for quarters in [1, 2, 4] {
        for account in ["ann", "ANN", " ann ", "Ann", "ann"] {
            assert_eq!(log_in(&app, account, "guess").await.status, 401, "{quarters}");
        }
        // Locked out, even with the password.
        let answer = log_in(&app, "ann", "open sesame").await;
        assert!(answer.is_denied());
        assert_eq!(answer.header("retry-after"), Some((quarters * 900).to_string().as_str()));
        assert_eq!(log_in(&app, "bob", "open sesame").await.status, 200);
        site.later(quarters * 900);
    }
    assert_eq!(log_in(&app, "ann", "open sesame").await.status, 200);
}

async fn attempts_at_a_locked_account_count_under_the_address(site: Site) {
    let app = site.serve(logins::app).await;
    for made in 0..20 {
        let answer = log_in(&app, "ann", "guess").await;
        assert_eq!(answer.status, if made < 5 { 401 } else { 429 }, "{made}");
    }
    // The address itself is denied now, whatever the account.
    let answer = log_in(&app, "bob", "open sesame").await;
    assert!(answer.is_denied());
    assert_eq!(answer.header("retry-after"), Some("3600"));
}

async fn a_valid_login_ends_the_failures_of_the_account(site: Site) {
    let app = site.serve(logins::app).await;
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(log_in(&app, "ann", "guess").await.status, 401);
        }
        assert_eq!(log_in(&app, "ann", "open sesame").await.status, 200);
    }
}

async fn logins_at_once_check_five_guesses_and_lock_no_valid_account_out(site: Site) {
    let app = site.serve(logins::app).await;
    let at_once = async |account, password| {
        let answers = join_all((0..12).map(|_| log_in(&app, account, password))).await;
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
        assert!(statuses.iter().all(|status| [200, 401, 429].contains(status)), "{statuses:?}");
        statuses.into_iter().filter(|status| *status != 429).count()
    };
    assert_eq!(at_once("ann", "guess").await, 5);
    assert!(at_once("bob", "open sesame").await >= 5);
    assert_eq!(log_in(&app, "bob", "open sesame").await.status, 200);
}
