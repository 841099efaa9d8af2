//! Random instants in random zones, and random requests, compared with the naive rule.

use std::collections::HashMap;

use jiff::tz::TimeZone;
use tower_ratelimit::{Limit, Limiter, Receipt};

use crate::calendars::dates::{Calendar, Dates};
use crate::calendars::{at, micros, quota, remaining, reset_after};
use support::split_mix::Random;
use support::store_fixture::{StoreFixture, on_both_stores};

on_both_stores!(windows_end_as_by_the_naive_rule, requests_agree_with_the_naive_rule,);

fn random_dates(random: &mut Random) -> Dates {
    match random.below(5) {
        0 | 1 => Dates::Days,
        2 => Dates::Weeks(random.below(7) as usize),
        3 => Dates::Months(1 + random.below(31) as u8),
        _ => Dates::Years,
    }
}

fn random_calendar(random: &mut Random) -> Calendar {
    Calendar::new(random_dates(random), ZONES[random.below(ZONES.len() as u64) as usize])
}

/// From 1971 to 2100, half of them close to a clock change, and some close to the edge of a window.
fn random_instant(random: &mut Random, calendar: &Calendar) -> u64 {
    let any = at("1971-01-01T00:00:00Z") + random.below(129 * 365 * DAY);
    let instant = match random.below(2) {
        0 => any,
        _ => beside_a_change(random, &calendar.zone, any),
    };
    match random.below(3) {
        0 => {
            let (start, end) = calendar.window(instant);
            let edges = [start.max(0) as u64, end as u64 - 1, end as u64];
            edges[random.below(3) as usize]
        }
        _ => instant,
    }
}

fn beside_a_change(random: &mut Random, zone: &TimeZone, any: u64) -> u64 {
    let any = jiff::Timestamp::from_microsecond(any as i64).unwrap();
    let Some(change) = zone.following(any).next() else { return any.as_microsecond() as u64 };
    let change = change.timestamp().as_microsecond() as u64;
    change - 2 * DAY + random.below(4 * DAY)
}

const DAY: u64 = 86_400_000_000;

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "America/St_Johns",
    "America/Havana",
    "Africa/Monrovia",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Asia/Gaza",
    "Pacific/Kwajalein",
    "Pacific/Kiritimati",
    "Antarctica/Troll",
    "America/Scoresbysund",
];

async fn windows_end_as_by_the_naive_rule(fixture: StoreFixture) {
    let mut random = Random(1);
    for case in 0..1_500 {
        let calendar = random_calendar(&mut random);
        let now = random_instant(&mut random, &calendar);
        let (start, end) = calendar.window(now);
        fixture.set(now);
        let windows = calendar.of(5);
        let decision = quota(&fixture, windows).acquire(format!("{case}"), 1).await.unwrap();
        let about = format!("{calendar:?} at {now}");
        assert_eq!(reset_after(&decision) as i64, end - now as i64, "{about}");
        let window = tower_ratelimit::Algorithm::from(windows).window_at(decision.at());
        assert_eq!(micros(Some(window)), Some((end - start) as u64), "{about}");
    }
}

/// The usage of a key: a count for each window, by its start.
struct Model {
    calendar: Calendar,
    limit: u64,
    counts: HashMap<i64, u64>,
}

impl Model {
    fn used(&self, now: u64) -> u64 {
        self.counts.get(&self.calendar.window(now).0).copied().unwrap_or(0)
    }

    async fn acquire(&mut self, limiter: &Limiter, now: u64, cost: u64) -> Option<(Receipt, i64, u64)> {
        let (start, end) = self.calendar.window(now);
        let left = (end - now as i64) as u64;
        let used = self.used(now);
        let decision = limiter.acquire("key", cost).await.unwrap();
        let about = format!("{:?} at {now}: {cost} of {}, {used} used: {decision:?}", self.calendar, self.limit);
        assert_eq!(decision.is_allowed(), used + cost <= self.limit, "{about}");
        let wait = (!decision.is_allowed() && cost <= self.limit).then_some(left);
        assert_eq!(micros(decision.retry_after()), wait, "{about}");
        let used = if decision.is_allowed() { used + cost } else { used };
        assert_eq!(remaining(&decision), self.limit - used, "{about}");
        let wait = (used > 0).then_some(left);
        assert_eq!(micros(decision.outcomes()[0].more_after()), wait, "{about}");
        assert_eq!(reset_after(&decision), wait.unwrap_or(0), "{about}");
        self.counts.insert(start, used);
        decision.is_allowed().then(|| (decision.into_receipt(), start, cost))
    }

    /// Refunds a charge in the window that began at `start`, if it still counts.
    fn refund(&mut self, now: u64, start: i64, cost: u64) {
        if self.calendar.window(now).0 == start {
            *self.counts.get_mut(&start).unwrap() -= cost;
        }
    }
}

async fn answers_as_the_model(fixture: &StoreFixture, seed: u64) {
    let mut random = Random(seed);
    let calendar = random_calendar(&mut random);
    let limit = 1 + random.below(8);
    // Limits of one name would share their state.
    let limiter = fixture.limiter(Limit::new(format!("quota {seed}"), calendar.of(limit as u32)));
    let mut now = random_instant(&mut random, &calendar);
    let mut model = Model { calendar, limit, counts: HashMap::new() };
    let mut held = Vec::new();
    for _ in 0..25 {
        let (_, end) = model.calendar.window(now);
        now = match random.below(8) {
            0 => end as u64,
            1 => (end as u64 - 1).max(now),
            2 => now + random.below(3 * DAY),
            3 => now + 1,
            _ => now,
        };
        fixture.set(now);
        if random.below(4) == 0 && !held.is_empty() {
            let (receipt, start, cost) = held.swap_remove(random.below(held.len() as u64) as usize);
            limiter.refund(receipt).await.unwrap();
            model.refund(now, start, cost);
        }
        let cost = 1 + random.below(limit + 1);
        held.extend(model.acquire(&limiter, now, cost).await);
    }
}

async fn requests_agree_with_the_naive_rule(fixture: StoreFixture) {
    for seed in 0..60 {
        answers_as_the_model(&fixture, seed).await;
    }
}
