//! Policies that depend on the response to a request.

use http::StatusCode;
use tower_ratelimit::SlidingLog;

use crate::policies::example::{logins, payments};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Answer;

on_both!(only_failed_payments_count, only_failed_logins_count_and_a_good_one_forgets_them);

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

async fn log_in(app: &Served, password: &str) -> Answer {
    app.send_json("POST /login", &[], &format!(r#"{{"password": "{password}"}}"#)).await
}

async fn only_failed_logins_count_and_a_good_one_forgets_them(site: Site) {
    let app = site.serve(logins::app).await;
    for _ in 0..3 {
        for left in (1..5).rev() {
            let answer = log_in(&app, "guess").await;
            assert_eq!((answer.status, answer.remaining()), (StatusCode::UNAUTHORIZED, left));
        }
        let answer = log_in(&app, "open sesame").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 5));
    }
    for _ in 0..5 {
        assert_eq!(log_in(&app, "guess").await.status, 401);
    }
    let answer = log_in(&app, "open sesame").await;
    assert!(answer.is_denied());
    assert_eq!(answer.header("retry-after"), Some("3600"));
    site.later(3_600);
    assert_eq!(log_in(&app, "open sesame").await.status, 200);
}
