//! Calendar windows with refunds, later requests, clocks that step back, overage and shares.

use support::faulty_store::{FaultyStore, Mode};
use tower_ratelimit::{CalendarWindow, Limit, OnStoreError, Share};

use crate::calendars::{at, limiter, on_each_backend, remaining, reset_after};

fn monthly() -> CalendarWindow {
    CalendarWindow::monthly(10).from_day(15).in_zone("Europe/Berlin")
}

#[tokio::test]
async fn a_refund_never_touches_a_later_window() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter(monthly());
        backend.set(at("2026-03-14T22:00:00Z"));
        let march = limiter.acquire("key", 4).await.unwrap().into_receipt();
        let same = limiter.acquire("key", 3).await.unwrap().into_receipt();
        limiter.refund(same).await.unwrap();
        assert_eq!(remaining(&limiter.peek("key", 0).await.unwrap()), 6, "{}", backend.name);

        backend.set(at("2026-03-14T23:00:00Z"));
        let april = limiter.acquire("key", 5).await.unwrap();
        assert_eq!(remaining(&april), 5, "{}", backend.name);
        limiter.refund(march).await.unwrap();
        assert_eq!(remaining(&limiter.peek("key", 0).await.unwrap()), 5, "{}", backend.name);
        limiter.refund(april.into_receipt()).await.unwrap();
        let decision = limiter.peek("key", 0).await.unwrap();
        assert_eq!((remaining(&decision), reset_after(&decision)), (10, 0), "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_receipt_of_an_ended_window_refunds_nothing_to_an_empty_one() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter(monthly());
        backend.set(at("2026-03-14T22:00:00Z"));
        let march = limiter.acquire("key", 4).await.unwrap().into_receipt();
        backend.set(at("2026-03-14T23:00:00Z"));
        limiter.refund(march).await.unwrap();
        assert_eq!(remaining(&limiter.peek("key", 0).await.unwrap()), 10, "{}", backend.name);
        backend.set(at("2026-03-14T22:00:00Z"));
        let left = remaining(&limiter.peek("key", 0).await.unwrap());
        assert!(left <= 10, "{left} in {}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_steps_back_admits_nothing_more() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter(monthly());
        let (april, march) = (at("2026-03-20T00:00:00Z"), at("2026-03-10T00:00:00Z"));
        let mut allowed = 0;
        for now in [april, march, april + 1, march + 1, at("2025-01-01T00:00:00Z"), april] {
            backend.set(now);
            for _ in 0..7 {
                let decision = limiter.acquire("key", 1).await.unwrap();
                allowed += u32::from(decision.is_allowed());
                // Until the start of the window that has begun, time stands still.
                assert_eq!(now + reset_after(&decision), at("2026-04-14T22:00:00Z"), "{}", backend.name);
            }
        }
        assert_eq!(allowed, 10, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn overage_is_counted_in_the_same_window() {
    on_each_backend(async |backend| {
        let limits = [Limit::new("quota", monthly()).soft(20)];
        let limiter = limiter(limits).store(backend.store.clone()).build();
        backend.set(at("2026-03-20T00:00:00Z"));
        let mut over = 0;
        for _ in 0..12 {
            let decision = limiter.acquire("key", 1).await.unwrap();
            assert!(decision.is_allowed(), "{}", backend.name);
            over += u32::from(decision.outcomes()[0].uses_overage());
        }
        assert_eq!(over, 2, "{}", backend.name);
        let denied = limiter.acquire("key", 1).await.unwrap();
        let left = at("2026-04-14T22:00:00Z") - at("2026-03-20T00:00:00Z");
        assert_eq!(crate::calendars::micros(denied.retry_after()), Some(left), "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn several_limits_are_decided_together() {
    on_each_backend(async |backend| {
        let daily = CalendarWindow::daily(3).in_zone("America/New_York");
        let limits = [Limit::new("month", monthly()), Limit::new("day", daily)];
        let limiter = limiter(limits).store(backend.store.clone()).build();
        backend.set(at("2026-11-01T12:00:00Z"));
        for allowed in [true, true, true, false, false] {
            assert_eq!(limiter.acquire("key", 1).await.unwrap().is_allowed(), allowed, "{}", backend.name);
        }
        let decision = limiter.acquire("key", 1).await.unwrap();
        assert_eq!(decision.outcomes().iter().map(|outcome| outcome.remaining()).collect::<Vec<_>>(), [7, 0]);
        let left = at("2026-11-02T05:00:00Z") - at("2026-11-01T12:00:00Z");
        assert_eq!(crate::calendars::micros(decision.retry_after()), Some(left), "{}", backend.name);
    })
    .await;
}

/// One of four nodes has a quarter of ten tokens per month, rounded down to two. Of two tokens, it has one in two
/// months.
#[tokio::test]
async fn shares_have_the_windows_of_the_whole_limit() {
    for (limit, share) in [(10, 2), (2, 1)] {
        loop {
            let monthly = CalendarWindow::monthly(limit).in_zone("Europe/Berlin");
            let limiter = limiter([Limit::new("quota", monthly)])
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
                let calendar =
                    crate::calendars::dates::Calendar::new(crate::calendars::dates::Dates::Months(1), "Europe/Berlin");
                assert_eq!(calendar.window(end).0, end as i64, "it ends with a month");
                let month = jiff::Timestamp::from_microsecond(end as i64).unwrap();
                let month = month.in_tz("Europe/Berlin").unwrap().date().month();
                assert!(limit == 10 || month % 2 == 1, "pairs of months begin with the year: {month}");
                break;
            }
        }
    }
}
