//! Policies that depend on the body of a request.

use http::StatusCode;

use crate::policies::example::{completions, messages, spending};
use crate::policies::site::{Served, Site, on_both};
use support::answer::Answer;

on_both!(two_hundred_dollars_come_back_by_fifty, one_risky_message_a_day, tokens_are_reserved_and_settled,);

const ANN: &[(&str, &str)] = &[("x-user", "ann")];
const BOB: &[(&str, &str)] = &[("x-user", "bob")];

async fn buy(app: &Served, cents: u64) -> Answer {
    app.send_json("POST /purchases", ANN, &format!(r#"{{"cents": {cents}}}"#)).await
}

async fn two_hundred_dollars_come_back_by_fifty(site: Site) {
    let app = site.serve(spending::app).await;
    for (cents, left) in [(12_000, 8_000), (0, 8_000), (7_999, 1)] {
        let answer = buy(&app, cents).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, left), "{cents}");
    }
    // A dollar fits into the limit of one day, and a hundred dollars into that of two days.
    for (cents, wait) in [(100, "86400"), (5_001, "86400"), (5_002, "172800"), (20_000, "345600")] {
        let answer = buy(&app, cents).await;
        assert!(answer.is_denied());
        assert_eq!((answer.header("retry-after"), answer.remaining()), (Some(wait), 1), "{cents}");
    }
    let answer = buy(&app, 20_001).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::FORBIDDEN, None));
    // Nothing comes back until the end of the day, and then all $50.
    site.later(86_399);
    assert!(buy(&app, 2).await.is_denied());
    site.later(1);
    assert_eq!(buy(&app, 1).await.remaining(), 5_000);
    assert_eq!(buy(&app, 5_000).await.remaining(), 0);
    assert!(buy(&app, 1).await.is_denied());
    // The limit never exceeds $200.
    site.later(30 * 86_400);
    assert_eq!(buy(&app, 20_000).await.status, 200);
    assert!(buy(&app, 1).await.is_denied());
    assert_eq!(app.send_json("POST /purchases", BOB, r#"{"cents": 1}"#).await.remaining(), 19_999);
}

async fn one_risky_message_a_day(site: Site) {
    let app = site.serve(messages::app).await;
    let send = async |headers, message| app.send("POST /messages", headers, message).await;
    for _ in 0..10 {
        let answer = send(ANN, "how are you?").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 1));
    }
    let answer = send(ANN, "Your Password, please").await;
    assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 0));
    site.later(3_600);
    let answer = send(ANN, "a wire transfer, then").await;
    assert!(answer.is_denied());
    assert_eq!(answer.header("retry-after"), Some("82800"));
    // Other users are not affected.
    assert_eq!(send(ANN, "well then").await.status, 200);
    assert_eq!(send(BOB, "a gift card?").await.status, 200);
    site.later(82_800);
    assert_eq!(send(ANN, "a gift card?").await.status, 200);
    assert!(send(ANN, "a gift card?").await.is_denied());
}

async fn tokens_are_reserved_and_settled(site: Site) {
    let app = site.serve(completions::app).await;
    let complete = async |tokens| app.send("POST /completions", ANN, &"a".repeat(tokens)).await;
    // Settlements of less than was reserved, of more, and of nothing.
    for (tokens, left) in [(200, 9_800), (4_600, 5_200), (0, 5_200), (4_100, 1_100), (200, 900)] {
        let answer = complete(tokens).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, left), "{tokens}");
    }
    // Too few tokens remain for the reservation.
    let answer = complete(1).await;
    assert!(answer.is_denied());
    assert_eq!((answer.remaining(), answer.header("retry-after")), (900, Some("86400")));
    // Usage beyond the limit is charged.
    let answer = app.send("POST /completions", BOB, &"b".repeat(12_000)).await;
    assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, 0));
    site.later(86_400);
    assert_eq!(complete(1).await.remaining(), 9_999);
}
