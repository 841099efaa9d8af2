//! Windows with known edges.

use support::calls::Calls;
use support::store_fixture::{StoreFixture, on_both_stores};
use tower_ratelimit::{Algorithm, CalendarWindow, Timestamp, Weekday};

use crate::calendars::{at, micros, quota, remaining, reset_after};

on_both_stores!(
    a_day_has_23_hours_where_clocks_go_forward_and_25_where_they_go_back,
    offsets_of_half_an_hour_are_exact,
    a_day_without_a_midnight_starts_with_its_first_instant,
    a_clock_change_does_not_undo_a_day_that_has_begun,
    a_skipped_date_has_no_window,
    weeks_begin_with_any_day,
    months_have_their_own_lengths,
    a_day_beyond_the_end_of_a_month_is_its_last_day,
    years_begin_in_january,
    the_last_supported_instants_are_in_windows,
);

/// Checks consecutive edges, each the end of one window and the start of the next.
async fn has_edges(fixture: &StoreFixture, windows: CalendarWindow, edges: &[&str]) {
    let edges: Vec<u64> = edges.iter().map(|edge| at(edge)).collect();
    let limiter = quota(fixture, windows);
    for pair in edges.windows(2) {
        let [start, end] = [pair[0], pair[1]];
        for now in [start, start + 1, start + (end - start) / 2, end - 1] {
            fixture.set(now);
            let about = format!("{windows:?} at {now}");
            let key = format!("{start} {now}");
            let decision = limiter.acquire(&key, 2).await.unwrap();
            assert!(decision.is_allowed(), "{about}");
            assert_eq!((remaining(&decision), reset_after(&decision)), (1, end - now), "{about}");
            assert_eq!(micros(decision.outcomes()[0].more_after()), Some(end - now), "{about}");
            let denied = limiter.acquire(&key, 2).await.unwrap();
            assert_eq!(micros(denied.retry_after()), Some(end - now), "{about}");
            assert_eq!(length_at(windows, now), end - start, "{about}");
        }
        // The last µs belongs to this window, and the next one to another.
        let key = format!("{start} {start}");
        fixture.set(end - 1);
        assert_eq!(limiter.left(&key).await, [1]);
        fixture.set(end);
        assert_eq!(limiter.left(&key).await, [3]);
        assert!(limiter.allows(&key, 3).await);
    }
}

/// Returns the length of the window at an instant, in µs.
fn length_at(windows: CalendarWindow, now: u64) -> u64 {
    Algorithm::from(windows).window_at(Timestamp::from_micros(now)).as_micros() as u64
}

fn daily(zone: &str) -> CalendarWindow {
    CalendarWindow::daily(3).in_zone(zone)
}

async fn a_day_has_23_hours_where_clocks_go_forward_and_25_where_they_go_back(fixture: StoreFixture) {
    let spring = ["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"];
    has_edges(&fixture, daily("Europe/Berlin"), &spring).await;
    let autumn = ["2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"];
    has_edges(&fixture, daily("Europe/Berlin"), &autumn).await;
    let spring = ["2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"];
    has_edges(&fixture, daily("America/New_York"), &spring).await;
    let autumn = ["2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"];
    has_edges(&fixture, daily("America/New_York"), &autumn).await;
}

async fn offsets_of_half_an_hour_are_exact(fixture: StoreFixture) {
    let autumn = ["2026-04-03T13:00:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", "2026-04-06T13:30:00Z"];
    has_edges(&fixture, daily("Australia/Lord_Howe"), &autumn).await;
    let spring = ["2026-10-02T13:30:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "2026-10-05T13:00:00Z"];
    has_edges(&fixture, daily("Australia/Lord_Howe"), &spring).await;
}

async fn a_day_without_a_midnight_starts_with_its_first_instant(fixture: StoreFixture) {
    // 4 November 2018 began at 1:00, and 17 February had 23:00 twice.
    let spring = ["2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"];
    has_edges(&fixture, daily("America/Sao_Paulo"), &spring).await;
    let autumn = ["2018-02-16T02:00:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z", "2018-02-19T03:00:00Z"];
    has_edges(&fixture, daily("America/Sao_Paulo"), &autumn).await;
    // Offsets need not be whole minutes: 7 January 1972 began at 0:44:30.
    let liberia = ["1972-01-05T00:44:30Z", "1972-01-06T00:44:30Z", "1972-01-07T00:44:30Z", "1972-01-08T00:00:00Z"];
    has_edges(&fixture, daily("Africa/Monrovia"), &liberia).await;
}

/// In Newfoundland, clocks were set back at 0:01: the day had begun, and then it was the previous date again.
async fn a_clock_change_does_not_undo_a_day_that_has_begun(fixture: StoreFixture) {
    let autumn = ["2006-10-27T02:30:00Z", "2006-10-28T02:30:00Z", "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"];
    has_edges(&fixture, daily("America/St_Johns"), &autumn).await;
    // If midnight occurs twice, the first one counts.
    let havana = ["2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"];
    has_edges(&fixture, daily("America/Havana"), &havana).await;
}

async fn a_skipped_date_has_no_window(fixture: StoreFixture) {
    // Samoa crossed the date line: after 29 December 2011 came the 31st.
    let days = ["2011-12-28T10:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"];
    has_edges(&fixture, daily("Pacific/Apia"), &days).await;
    let months = ["2011-11-30T10:00:00Z", "2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"];
    has_edges(&fixture, CalendarWindow::monthly(3).from_day(30).in_zone("Pacific/Apia"), &months).await;
    has_edges(
        &fixture,
        CalendarWindow::weekly(3, Weekday::Friday).in_zone("Pacific/Apia"),
        &["2011-12-23T10:00:00Z", "2011-12-30T10:00:00Z", "2012-01-05T10:00:00Z"],
    )
    .await;
}

async fn weeks_begin_with_any_day(fixture: StoreFixture) {
    let mondays = ["2026-03-15T23:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", "2026-04-05T22:00:00Z"];
    has_edges(&fixture, CalendarWindow::weekly(3, Weekday::Monday).in_zone("Europe/Berlin"), &mondays).await;
    let sundays = ["2026-03-01T05:00:00Z", "2026-03-08T05:00:00Z", "2026-03-15T04:00:00Z"];
    has_edges(&fixture, CalendarWindow::weekly(3, Weekday::Sunday).in_zone("America/New_York"), &sundays).await;
    let thursdays = ["1970-01-01T00:00:00Z", "1970-01-08T00:00:00Z", "1970-01-15T00:00:00Z"];
    has_edges(&fixture, CalendarWindow::weekly(3, Weekday::Thursday), &thursdays).await;
}

async fn months_have_their_own_lengths(fixture: StoreFixture) {
    let firsts = ["2026-01-31T23:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"];
    has_edges(&fixture, CalendarWindow::monthly(3).in_zone("Europe/Berlin"), &firsts).await;
    let fifteenths = ["2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z", "2026-02-15T00:00:00Z", "2026-03-15T00:00:00Z"];
    has_edges(&fixture, CalendarWindow::monthly(3).from_day(15), &fifteenths).await;
}

async fn a_day_beyond_the_end_of_a_month_is_its_last_day(fixture: StoreFixture) {
    let from = |day| CalendarWindow::monthly(3).from_day(day);
    let common = [
        "2025-12-31T00:00:00Z",
        "2026-01-31T00:00:00Z",
        "2026-02-28T00:00:00Z",
        "2026-03-31T00:00:00Z",
        "2026-04-30T00:00:00Z",
    ];
    has_edges(&fixture, from(31), &common).await;
    let leap = ["2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"];
    has_edges(&fixture, from(31), &leap).await;
    has_edges(&fixture, from(29), &["2028-01-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-29T00:00:00Z"]).await;
    // 2100 is not a leap year, and 2000 was one.
    has_edges(&fixture, from(30), &["2100-01-30T00:00:00Z", "2100-02-28T00:00:00Z", "2100-03-30T00:00:00Z"]).await;
    has_edges(&fixture, from(30), &["2000-01-30T00:00:00Z", "2000-02-29T00:00:00Z", "2000-03-30T00:00:00Z"]).await;
}

async fn years_begin_in_january(fixture: StoreFixture) {
    let years = ["2025-12-31T23:00:00Z", "2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z", "2028-12-31T23:00:00Z"];
    has_edges(&fixture, CalendarWindow::yearly(3).in_zone("Europe/Berlin"), &years).await;
    has_edges(&fixture, CalendarWindow::yearly(3), &["1970-01-01T00:00:00Z", "1971-01-01T00:00:00Z"]).await;
}

/// Far beyond the dates of the database, nothing panics, and windows are consecutive.
async fn the_last_supported_instants_are_in_windows(fixture: StoreFixture) {
    for zone in ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Apia", "America/New_York", "Asia/Kolkata"] {
        for windows in [
            CalendarWindow::daily(3),
            CalendarWindow::weekly(3, Weekday::Sunday),
            CalendarWindow::monthly(3).from_day(31),
            CalendarWindow::yearly(3),
        ] {
            let windows = windows.in_zone(zone);
            let limiter = quota(&fixture, windows);
            for from in [at("2099-12-25T12:00:00Z"), (1 << 52) - 20 * 86_400_000_000] {
                for day in 0..19 {
                    let now = from + day * 86_400_000_000 + 1;
                    fixture.set(now);
                    let key = format!("{now}");
                    let end = now + reset_after(&limiter.acquire(&key, 1).await.unwrap());
                    let longest = length_at(windows, now);
                    assert!(end > now && end - now <= longest, "{windows:?} at {now}");
                    if end <= 1 << 52 {
                        fixture.set(end - 1);
                        assert_eq!(limiter.left(&key).await, [2], "{windows:?} at {now}");
                        fixture.set(end);
                        assert_eq!(limiter.left(&key).await, [3], "{windows:?} at {now}");
                    }
                }
            }
        }
    }
}

/// Without a zone, no feature is needed, and these can be constants.
#[test]
fn windows_in_utc_are_days_and_weeks() {
    const DAILY: CalendarWindow = CalendarWindow::daily(3);
    const BILLED: CalendarWindow = CalendarWindow::monthly(3).from_day(15);
    assert_eq!(DAILY.in_zone("utc"), DAILY);
    assert_ne!(BILLED, CalendarWindow::monthly(3));
    assert_ne!(DAILY.in_zone("Europe/Berlin"), DAILY);
    assert_eq!(DAILY.in_zone("Europe/Berlin"), DAILY.in_zone("europe/berlin"));
}
