//! Calendar windows with refunds, later requests, clocks that step back, overage and shares.

use support::calls::{Calls, Outcomes};
use support::faulty_store::{FaultyStore, Mode};
use support::patient::Patient;
use support::store_fixture::{StoreFixture, on_both_stores};
use tower_ratelimit::{CalendarWindow, Limit, Limiter, OnStoreError, Share};

use crate::calendars::dates::{Calendar, Dates};
use crate::calendars::{at, micros, quota, reset_after};

on_both_stores!(
    a_refund_never_touches_a_later_window,
    a_receipt_of_an_ended_window_refunds_nothing_to_an_empty_one,
    a_clock_that_steps_back_admits_nothing_more,
    overage_is_counted_in_the_same_window,
    several_limits_are_decided_together,
);

fn monthly() -> CalendarWindow {
    CalendarWindow::monthly(10).from_day(15).in_zone("Europe/Berlin")
}

async fn a_refund_never_touches_a_later_window(fixture: StoreFixture) {
    let limiter = quota(&fixture, monthly());
    fixture.set(at("2026-03-14T22:00:00Z"));
    let march = limiter.acquire("key", 4).await.unwrap().into_receipt();
    let same = limiter.acquire("key", 3).await.unwrap().into_receipt();
    limiter.refund(same).await.unwrap();
    assert_eq!(limiter.left("key").await, [6]);

    fixture.set(at("2026-03-14T23:00:00Z"));
    let april = limiter.acquire("key", 5).await.unwrap().into_receipt();
    for (receipt, left) in [(march, 5), (april, 10)] {
        limiter.refund(receipt).await.unwrap();
        assert_eq!(limiter.left("key").await, [left]);
    }
    assert_eq!(reset_after(&limiter.peek("key", 0).await.unwrap()), 0);
}

async fn a_receipt_of_an_ended_window_refunds_nothing_to_an_empty_one(fixture: StoreFixture) {
    let limiter = quota(&fixture, monthly());
    fixture.set(at("2026-03-14T22:00:00Z"));
    let march = limiter.acquire("key", 4).await.unwrap().into_receipt();
    fixture.set(at("2026-03-14T23:00:00Z"));
    limiter.refund(march).await.unwrap();
    assert_eq!(limiter.left("key").await, [10]);
    fixture.set(at("2026-03-14T22:00:00Z"));
    let left = limiter.left("key").await;
    assert!(left[0] <= 10, "{left:?}");
}

async fn a_clock_that_steps_back_admits_nothing_more(fixture: StoreFixture) {
    let limiter = quota(&fixture, monthly());
    let (april, march) = (at("2026-03-20T00:00:00Z"), at("2026-03-10T00:00:00Z"));
    let mut allowed = 0;
    for now in [april, march, april + 1, march + 1, at("2025-01-01T00:00:00Z"), april] {
        fixture.set(now);
        for _ in 0..7 {
            let decision = limiter.acquire("key", 1).await.unwrap();
            allowed += u32::from(decision.is_allowed());
            // Until the start of the window that has begun, time stands still.
            assert_eq!(now + reset_after(&decision), at("2026-04-14T22:00:00Z"));
        }
    }
    assert_eq!(allowed, 10);
}

async fn overage_is_counted_in_the_same_window(fixture: StoreFixture) {
    let limiter = fixture.limiter(Limit::new("quota", monthly()).soft(20));
    fixture.set(at("2026-03-20T00:00:00Z"));
    let mut over = 0;
    for _ in 0..12 {
        let decision = limiter.acquire("key", 1).await.unwrap();
        assert!(decision.is_allowed());
        over += u32::from(decision.outcomes()[0].uses_overage());
    }
    assert_eq!(over, 2);
    let denied = limiter.acquire("key", 1).await.unwrap();
    let left = at("2026-04-14T22:00:00Z") - at("2026-03-20T00:00:00Z");
    assert_eq!(micros(denied.retry_after()), Some(left));
}

async fn several_limits_are_decided_together(fixture: StoreFixture) {
    let daily = CalendarWindow::daily(3).in_zone("America/New_York");
    let limiter = fixture.limiter([Limit::new("month", monthly()), Limit::new("day", daily)]);
    fixture.set(at("2026-11-01T12:00:00Z"));
    for allowed in [true, true, true, false, false] {
        assert_eq!(limiter.allows("key", 1).await, allowed);
    }
    let decision = limiter.acquire("key", 1).await.unwrap();
    assert_eq!(decision.remaining(), [7, 0]);
    let left = at("2026-11-02T05:00:00Z") - at("2026-11-01T12:00:00Z");
    assert_eq!(micros(decision.retry_after()), Some(left));
}

/// One of four nodes has a quarter of ten tokens per month, rounded down to two. Of two tokens, it has one in two
/// months.
#[tokio::test]
async fn shares_have_the_windows_of_the_whole_limit() {
    for (limit, share) in [(10, 2), (2, 1)] {
        loop {
            let monthly = CalendarWindow::monthly(limit).in_zone("Europe/Berlin");
            let limiter = Limiter::builder(Limit::new("quota", monthly))
                .patient()
                .store(FaultyStore::new(Mode::FailsAtOnce))
                .on_store_error(OnStoreError::DecideLocally(Share::one_of(4)))
                .build();
            let mut allowed = 0;
            let mut ends = Vec::new();
            for _ in 0..5 {
                let decision = limiter.acquire("key", 1).await.unwrap();
                allowed += u32::from(decision.is_allowed());
                ends.push(decision.at().as_micros() + reset_after(&decision));
            }
            ends.dedup();
            // Unless a month ended in between.
            if let [end] = ends[..] {
                assert_eq!(allowed, share);
                let calendar = Calendar::new(Dates::Months(1), "Europe/Berlin");
                assert_eq!(calendar.window(end).0, end as i64, "it ends with a month");
                let month = jiff::Timestamp::from_microsecond(end as i64).unwrap();
                let month = month.in_tz("Europe/Berlin").unwrap().date().month();
                assert!(limit == 10 || month % 2 == 1, "pairs of months begin with the year: {month}");
                break;
            }
        }
    }
}
