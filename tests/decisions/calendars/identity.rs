//! The limits that share state, and the TTL of their keys in Redis.

use deadpool_redis::redis::cmd;
use support::calls::{Calls, Outcomes};
use support::patient::Patient;
use support::redis_server::{RedisServer, expiry_of};
use support::store_fixture::{StoreFixture, connect, on_both_stores};
use tower_ratelimit::{
    CalendarWindow, ConfigError, FixedWindow, Limit, Limiter, ManualClock, RedisStore, Timestamp, Weekday,
};

use crate::bad_input::panic_of;
use crate::calendars::dates::{Calendar, Dates};
use crate::calendars::{at, quota, reset_after};

on_both_stores!(each_calendar_has_its_own_state,);

fn limiter(store: RedisStore, windows: CalendarWindow) -> Limiter {
    Limiter::builder(Limit::new("quota", windows)).patient().store(store).build()
}

async fn each_calendar_has_its_own_state(fixture: StoreFixture) {
    fixture.set(at("2026-03-20T12:00:00Z"));
    let limits = [
        CalendarWindow::daily(5),
        CalendarWindow::daily(5).in_zone("Europe/Berlin"),
        CalendarWindow::daily(5).in_zone("Europe/Paris"),
        CalendarWindow::weekly(5, Weekday::Monday),
        CalendarWindow::weekly(5, Weekday::Sunday),
        CalendarWindow::monthly(5),
        CalendarWindow::monthly(5).from_day(2),
        CalendarWindow::yearly(5),
    ];
    // The second limiter of a limit shares its state.
    for takes in [true, false] {
        for (windows, cost) in limits.into_iter().zip([1, 2, 3, 4, 5, 1, 2, 3]) {
            let limiter = quota(&fixture, windows);
            assert!(!takes || limiter.allows("key", cost).await);
            assert_eq!(limiter.left("key").await, [5 - cost], "{windows:?}");
        }
    }
    // Also with another size. The names of zones are not case-sensitive.
    for (zone, left) in [("uTc", 8), ("EUROPE/BERLIN", 7)] {
        assert_eq!(quota(&fixture, CalendarWindow::daily(9).in_zone(zone)).left("key").await, [left]);
    }
    assert_eq!(quota(&fixture, FixedWindow::per_day(5)).left("key").await, [5]);
}

#[tokio::test]
async fn keys_are_named_by_their_calendar_and_kept_for_a_second_after_the_end_of_the_window() {
    let server = RedisServer::start();
    let mut connection = server.connection().await;
    let now: Vec<u64> = cmd("TIME").query_async(&mut connection).await.unwrap();
    for (windows, end) in [
        (CalendarWindow::daily(5), "cwd.UTC"),
        (CalendarWindow::weekly(5, Weekday::Sunday).in_zone("Etc/GMT+5"), "cww7.Etc/GMT+5"),
        (CalendarWindow::monthly(5).from_day(15).in_zone("europe/berlin"), "cwm15.Europe/Berlin"),
        (CalendarWindow::yearly(5).in_zone("America/New_York"), "cwy.America/New_York"),
    ] {
        let limiter = limiter(connect(&server).await, windows);
        let decision = limiter.acquire("key", 2).await.unwrap();
        assert!(decision.at().as_micros() / 1_000_000 >= now[0], "it is by Redis' clock");
        let [key] = &server.keys("*")[..] else { panic!("{:?}", server.keys("*")) };
        assert!(key.ends_with(&format!("}}:quota:{end}")), "{key}");
        let expires = expiry_of(key, &mut connection).await;
        assert_eq!(expires, (decision.at().as_micros() + reset_after(&decision)) / 1_000 + 1_000, "{key}");
        limiter.refund(decision.into_receipt()).await.unwrap();
        assert_eq!(server.keys("*"), [""; 0], "an empty state is deleted");
    }
}

/// With the clock of Redis, as by the naive rule.
#[tokio::test]
async fn on_a_real_clock_windows_are_those_of_the_rule() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    for zone in ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        for dates in [Dates::Days, Dates::Weeks(6), Dates::Months(31), Dates::Years] {
            let calendar = Calendar::new(dates, zone);
            let limiter = limiter(store.clone(), calendar.of(3));
            for allowed in [true, true, true, false] {
                let decision = limiter.acquire(zone, 1).await.unwrap();
                let at = decision.at().as_micros();
                assert_eq!(decision.is_allowed(), allowed, "{calendar:?}");
                assert_eq!((at + reset_after(&decision)) as i64, calendar.window(at).1, "{calendar:?}");
            }
        }
    }
}

/// If another process has other rules for a zone, a window that has begun ends as it was defined.
#[tokio::test]
async fn a_window_ends_as_defined_when_it_began() {
    let server = RedisServer::start();
    let clock = ManualClock::new(Timestamp::from_micros(at("2026-03-20T12:00:00Z")));
    let store = connect(&server).await.clock(clock.clone());
    let limiter = limiter(store, CalendarWindow::daily(5).in_zone("Europe/Berlin"));
    let _ = limiter.acquire("key", 2).await.unwrap();

    // By the rules of the other process, the day ends an hour later.
    let key = &server.keys("*")[0];
    let mut held: Vec<u8> = server.ask(cmd("GET").arg(key));
    let later = at("2026-03-21T00:00:00Z");
    held[..7].copy_from_slice(&later.to_le_bytes()[..7]);
    let () = server.ask(cmd("SET").arg(key).arg(&held));
    for (now, left, reset) in [(at("2026-03-20T23:30:00Z"), 2, 1_800_000_000), (later, 4, 23 * 3_600_000_000)] {
        clock.set(Timestamp::from_micros(now));
        let decision = limiter.acquire("key", 1).await.unwrap();
        assert_eq!((decision.remaining(), reset_after(&decision)), (vec![left], reset));
    }
}

#[test]
fn impossible_settings_are_errors() {
    let builds: [fn() -> CalendarWindow; 4] = [
        || CalendarWindow::daily(0),
        || CalendarWindow::weekly(0, Weekday::Monday),
        || CalendarWindow::monthly(0),
        || CalendarWindow::yearly(0),
    ];
    for build in builds {
        assert_eq!(panic_of(build), "limit is 0: allow at least 1 token, or leave the limit out");
    }
    let monthly = CalendarWindow::monthly(1);
    assert!((1..=31).all(|day| monthly.try_from_day(day).is_ok()));
    let error = |built: Result<CalendarWindow, ConfigError>| built.unwrap_err().to_string();
    for day in [0, 32] {
        assert_eq!(error(monthly.try_from_day(day)), format!("no month has a day {day}: use one from 1 to 31"));
    }
    let text = "`from_day` is for months: use `CalendarWindow::monthly`, or leave it out";
    assert_eq!(error(CalendarWindow::daily(1).try_from_day(1)), text);
    for zone in ["Europe/Atlantis", "", "CEST-1", "Etc/Unknown", "../UTC", "Europe/Berlin\0"] {
        let text = format!(
            "there is no time zone {zone:?}: use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
        );
        assert_eq!(error(monthly.try_in_zone(zone)), text);
    }
}
