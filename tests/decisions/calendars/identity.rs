//! The limits that share state, and the TTL of their keys in Redis.

use deadpool_redis::redis::cmd;
use tower_ratelimit::{CalendarWindow, ConfigError, FixedWindow, Limit, ManualClock, Timestamp, Weekday};

use crate::calendars::{at, config, limiter, on_each_backend, remaining, reset_after};
use support::redis_server::{RedisServer, expiry_of};

#[tokio::test]
async fn each_calendar_has_its_own_state() {
    on_each_backend(async |backend| {
        backend.set(at("2026-03-20T12:00:00Z"));
        let limits = || {
            [
                CalendarWindow::daily(5),
                CalendarWindow::daily(5).in_zone("Europe/Berlin"),
                CalendarWindow::daily(5).in_zone("Europe/Paris"),
                CalendarWindow::weekly(5, Weekday::Monday),
                CalendarWindow::weekly(5, Weekday::Sunday),
                CalendarWindow::monthly(5),
                CalendarWindow::monthly(5).from_day(2),
                CalendarWindow::yearly(5),
            ]
        };
        for (taken, windows) in limits().into_iter().enumerate() {
            let decision = backend.limiter(windows).acquire("key", 1 + taken as u64 % 5).await.unwrap();
            assert_eq!(remaining(&decision), 4 - taken as u64 % 5, "{windows:?} in {}", backend.name);
        }
        // Another limiter shares the state, also with another size. The name of UTC is not case-sensitive.
        for (taken, windows) in limits().into_iter().enumerate() {
            let decision = backend.limiter(windows).peek("key", 0).await.unwrap();
            assert_eq!(remaining(&decision), 4 - taken as u64 % 5, "{windows:?} in {}", backend.name);
        }
        let larger = backend.limiter(CalendarWindow::daily(9).in_zone("uTc")).peek("key", 0).await.unwrap();
        assert_eq!(remaining(&larger), 8, "{}", backend.name);
        let larger = backend.limiter(CalendarWindow::daily(9).in_zone("EUROPE/BERLIN")).peek("key", 0).await.unwrap();
        assert_eq!(remaining(&larger), 7, "{}", backend.name);
        let fixed = backend.limiter(FixedWindow::per_day(5)).peek("key", 0).await.unwrap();
        assert_eq!(remaining(&fixed), 5, "{}", backend.name);
    })
    .await;
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
        let store = config(&server).connect().await.unwrap();
        let limiter = limiter([Limit::new("quota", windows)]).store(store).build();
        let decision = limiter.acquire("key", 2).await.unwrap();
        assert!(decision.at().as_micros() / 1_000_000 >= now[0], "it is by Redis' clock");
        let keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        let [key] = &keys[..] else { panic!("{keys:?}") };
        assert!(key.ends_with(&format!("}}:quota:{end}")), "{key}");
        let expires = expiry_of(key, &mut connection).await;
        assert_eq!(expires, (decision.at().as_micros() + reset_after(&decision)) / 1_000 + 1_000, "{key}");
        limiter.refund(decision.into_receipt()).await.unwrap();
        let keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        assert_eq!(keys, [""; 0], "what is empty is deleted");
    }
}

/// With the clock of Redis, as by the naive rule.
#[tokio::test]
async fn on_a_real_clock_windows_are_those_of_the_rule() {
    use crate::calendars::dates::{Calendar, Dates};
    let server = RedisServer::start();
    let store = config(&server).connect().await.unwrap();
    for zone in ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        for dates in [Dates::Days, Dates::Weeks(6), Dates::Months(31), Dates::Years] {
            let calendar = Calendar::new(dates, zone);
            let limiter = limiter([Limit::new("quota", calendar.of(3))]).store(store.clone()).build();
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
    let mut connection = server.connection().await;
    let clock = ManualClock::new(Timestamp::from_micros(at("2026-03-20T12:00:00Z")));
    let store = config(&server).connect().await.unwrap().clock(clock.clone());
    let windows = CalendarWindow::daily(5).in_zone("Europe/Berlin");
    let limiter = limiter([Limit::new("quota", windows)]).store(store).build();
    let _ = limiter.acquire("key", 2).await.unwrap();

    // By the rules of the other process, the day ends an hour later.
    let keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut held: Vec<u8> = cmd("GET").arg(&keys[0]).query_async(&mut connection).await.unwrap();
    let later = at("2026-03-21T00:00:00Z");
    held[..7].copy_from_slice(&later.to_le_bytes()[..7]);
    let () = cmd("SET").arg(&keys[0]).arg(&held).query_async(&mut connection).await.unwrap();

    clock.set(Timestamp::from_micros(at("2026-03-20T23:30:00Z")));
    let decision = limiter.acquire("key", 1).await.unwrap();
    assert_eq!((remaining(&decision), reset_after(&decision)), (2, 1_800_000_000));
    clock.set(Timestamp::from_micros(later));
    let decision = limiter.acquire("key", 1).await.unwrap();
    assert_eq!((remaining(&decision), reset_after(&decision)), (4, 23 * 3_600_000_000));
}

#[track_caller]
fn refused(built: Result<CalendarWindow, ConfigError>, text: &str) {
    assert_eq!(built.expect_err(text).to_string(), text);
}

#[test]
fn impossible_settings_are_errors() {
    let text = "limit is 0: allow at least 1 token, or leave the limit out";
    let builds: [fn() -> CalendarWindow; 4] = [
        || CalendarWindow::daily(0),
        || CalendarWindow::weekly(0, Weekday::Monday),
        || CalendarWindow::monthly(0),
        || CalendarWindow::yearly(0),
    ];
    for build in builds {
        let panic = std::panic::catch_unwind(build).expect_err("it did not panic");
        assert_eq!(panic.downcast_ref::<String>().expect("a text"), text);
    }
    let monthly = CalendarWindow::monthly(1);
    assert!((1..=31).all(|day| monthly.try_from_day(day).is_ok()));
    refused(monthly.try_from_day(0), "no month has a day 0: use one from 1 to 31");
    refused(monthly.try_from_day(32), "no month has a day 32: use one from 1 to 31");
    let text = "`from_day` is for months: use `CalendarWindow::monthly`, or leave it out";
    refused(CalendarWindow::daily(1).try_from_day(1), text);
    for zone in ["Europe/Atlantis", "", "CEST-1", "Etc/Unknown", "../UTC", "Europe/Berlin\0"] {
        let text = format!(
            "there is no time zone {zone:?}: use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
        );
        refused(monthly.try_in_zone(zone), &text);
    }
}
