//! Invalid configurations are rejected when they are built. The error names the value and the remedy.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{panic, thread};

use support::time::{LONGEST, SECOND};
use tower_ratelimit::{
    AddressList, CalendarWindow, ConfigError, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, LiveLimits,
    MemoryStore, Penalty, RateLimitLayer, SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket, key,
};

#[track_caller]
fn assert_error<T>(built: Result<T, ConfigError>, text: &str) {
    match built {
        Ok(_) => panic!("it is not an error: {text}"),
        Err(error) => assert_eq!(error.to_string(), text),
    }
}

/// Returns the message with which `build` panics.
#[track_caller]
pub(crate) fn panic_of<T>(build: impl FnOnce() -> T + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(build).err().expect("it did not panic");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a panic with a text").to_string(),
    }
}

#[test]
fn limits_of_0_are_errors() {
    let text = |what| format!("{what} is 0: allow at least 1 token, or leave the limit out");
    assert_error(FixedWindow::try_new(0, SECOND), &text("limit"));
    assert_error(SlidingLog::try_new(0, SECOND), &text("limit"));
    assert_error(SlidingWindow::try_new(0, SECOND), &text("limit"));
    assert_error(SlidingWindowCounter::try_new(0, SECOND), &text("limit"));
    for (what, capacity, amount) in [("capacity", 0, 1), ("amount", 1, 0)] {
        assert_error(TokenBucket::try_new(capacity, amount, SECOND), &text(what));
        assert_error(LeakyBucket::try_new(capacity, amount, SECOND), &text(what));
        assert_error(LeakyBucketQueue::try_new(capacity, amount, SECOND), &text(what));
    }
    let panics = [panic_of(|| TokenBucket::per_second(0)), panic_of(|| LeakyBucketQueue::per_day(0))];
    assert_eq!(panics, [text("rate"), text("rate")]);
    assert_eq!(panic_of(|| TokenBucket::per_second(5).burst(0)), text("burst"));
    assert_eq!(panic_of(|| FixedWindow::per_second(0)), text("limit"));
}

#[test]
fn periods_are_whole_microseconds_up_to_a_leap_year() {
    for is in [Duration::from_micros(1), LONGEST] {
        assert!(FixedWindow::try_new(1, is).is_ok() && TokenBucket::try_new(1, 1, is).is_ok(), "{is:?}");
    }
    let over = LONGEST + Duration::from_nanos(1);
    for (span, is) in [
        (Duration::ZERO, "0 seconds"),
        (over, "366 days 0.000000001 seconds"),
        (Duration::MAX, "213503982334601 days 7 hours 15.999999999 seconds"),
        (Duration::from_nanos(999), "999 ns"),
        (Duration::from_nanos(1_500), "1.5 µs"),
    ] {
        let text = |what| format!("{what} is {is}: use whole microseconds, from 1 µs to 366 days");
        assert_error(FixedWindow::try_new(1, span), &text("period"));
        assert_error(SlidingLog::try_new(1, span), &text("period"));
        assert_error(SlidingWindow::try_new(1, span), &text("period"));
        assert_error(SlidingWindowCounter::try_new(1, span), &text("period"));
        assert_error(TokenBucket::try_new(1, 1, span), &text("interval"));
        assert_error(LeakyBucket::try_new(1, 1, span), &text("interval"));
        assert_error(LeakyBucketQueue::try_new(1, 1, span), &text("interval"));
        assert_eq!(panic_of(|| SlidingLog::new(1, span)), text("period"));
        assert_eq!(panic_of(|| LeakyBucket::new(1, 1, span)), text("interval"));
    }
}

#[test]
fn buckets_divide_their_period() {
    let minute = SlidingWindow::per_minute(1);
    assert!(minute.try_buckets(60).is_ok() && minute.try_buckets(60_000_000).is_ok());
    let text = |period, buckets, micros| {
        format!(
            "period {period} does not divide into {buckets} buckets of whole microseconds: use a number that divides {micros}"
        )
    };
    for buckets in [0, 7] {
        assert_error(minute.try_buckets(buckets), &text("1 minute", buckets, 60_000_000));
    }
    let short = SlidingWindow::new(1, Duration::from_micros(5));
    assert_error(short.try_buckets(u32::MAX), &text("5 µs", u32::MAX, 5));
    assert_eq!(panic_of(|| SlidingWindow::per_second(1).buckets(3)), text("1 second", 3, 1_000_000));
}

#[test]
fn a_burst_and_those_that_wait_are_in_range_together_and_weights_are_percentages() {
    let queue = LeakyBucketQueue::per_second(u32::MAX).waiting(10);
    assert!(queue.try_burst(u32::MAX - 10).is_ok());
    let message = "burst is 4294967286, which with 10 tokens that may wait is more than 4294967295: lower one of them";
    assert_error(queue.try_burst(u32::MAX - 9), message);
    assert_eq!(panic_of(|| queue.burst(u32::MAX - 9)), message);

    let counter = SlidingWindowCounter::per_minute(10);
    assert_eq!(counter.weight(100), counter);
    assert_ne!(counter.weight(1), counter);
    for percent in [0, 101, u32::MAX] {
        assert_error(counter.try_weight(percent), &format!("weight is {percent} %: use 1 to 100"));
    }
    assert_eq!(panic_of(|| counter.weight(0)), "weight is 0 %: use 1 to 100");
}

#[test]
fn buckets_must_drain_within_142_years() {
    let year = LONGEST;
    for (most, amount) in [(142, 1), (284, 2)] {
        assert!(TokenBucket::try_new(most, amount, year).is_ok() && LeakyBucket::try_new(most, amount, year).is_ok());
        let message = format!(
            "a bucket of {} tokens takes more than 142 years to fill or drain at {amount} per 366 days: lower the \
             capacity, or raise the rate",
            most + 1,
        );
        assert_error(TokenBucket::try_new(most + 1, amount, year), &message);
        assert_eq!(panic_of(|| TokenBucket::new(1, amount, year).burst(most + 1)), message);
        // One proceeds, and the others wait.
        assert!(LeakyBucketQueue::try_new(most - 1, amount, year).is_ok());
        assert_error(LeakyBucketQueue::try_new(most, amount, year), &message);
        let queue = LeakyBucketQueue::new(1, amount, year);
        assert!(queue.try_burst(most - 2).is_ok());
        assert_error(queue.try_burst(most - 1), &message);
    }
    let soft =
        |percent| Limiter::builder(Limit::new("yearly", TokenBucket::new(100, 1, year)).soft(percent)).try_build();
    assert!(soft(42).is_ok());
    let soft_at_intervals = |percent| {
        let bucket = TokenBucket::new(1_000, 10, year).at_intervals();
        Limiter::builder(Limit::new("yearly", bucket).soft(percent)).try_build()
    };
    assert!(soft_at_intervals(42).is_ok() && soft_at_intervals(43).is_err());
    assert_error(
        soft(43),
        "the limit \"yearly\" of 100 and 43 % of that are more than the 4,294,967,295 tokens that a limit can have, or \
         take more than 142 years to drain: lower one",
    );
}

/// 142 intervals and a part of one: a bucket that refills at intervals is full after another whole one.
#[test]
fn buckets_that_refill_at_intervals_must_be_full_within_142_years() {
    let bucket = |capacity| TokenBucket::try_new(capacity, 10, LONGEST).unwrap();
    let message = "a bucket of 1424 tokens takes more than 142 years to fill or drain at 10 per 366 days: lower the \
                   capacity, or raise the rate";
    let full = bucket(1_420).try_at_intervals().unwrap();
    assert_error(bucket(1_424).try_at_intervals(), message);
    assert_eq!(panic_of(|| bucket(1_424).at_intervals()), message);
    assert_eq!(panic_of(|| full.burst(1_424)), message);
}

#[test]
fn names_must_fit_in_a_header() {
    let named = |name: &str| Limit::try_new(name, FixedWindow::per_day(1));
    assert!(named("a").is_ok() && named("Per user, per day!").is_ok() && named(&"x".repeat(64)).is_ok());
    assert_error(named(""), "a limit's name is empty: give it 1 to 64 characters");
    let long = "x".repeat(65);
    assert_error(named(&long), &format!("the limit's name \"{long}\" has 65 characters: use at most 64"));
    for (name, shown, character) in
        [("täglich", "täglich", "ä"), ("a\nb", "a\\nb", "\\n"), ("\u{7f}", "\\u{7f}", "\\u{7f}")]
    {
        let text = format!(
            "the limit's name \"{shown}\" has the character '{character}': use ASCII letters, digits, \
             punctuation and spaces, which HTTP headers can carry"
        );
        assert_error(named(name), &text);
    }
}

#[test]
fn limits_of_a_limiter_have_distinct_names() {
    let named = |name: &str| Limit::new(name, FixedWindow::per_day(1));
    assert_error(
        Limiter::builder([named("a"), named("b"), named("a")]).try_build(),
        "two limits are named \"a\": give each a name of its own",
    );
    let limits = |limits: usize| (0..limits).map(|index| Limit::new(index.to_string(), FixedWindow::per_day(1)));
    assert!(Limiter::builder(limits(64)).try_build().is_ok());
    assert_error(Limiter::builder(limits(65)).try_build(), "65 limits for one request are too many: use at most 64");
}

#[test]
fn a_limiter_without_requests_rejects_limits_that_need_one() {
    let limit = || Limit::new("daily", FixedWindow::per_day(5));
    let text = |what| {
        format!(
            "the limit \"daily\" takes its {what} from a request, but a `Limiter` has none: \
             decide it where you call `acquire`, or use a `RateLimitLayer`"
        )
    };
    assert_error(Limiter::builder([limit().by(key::header("x-api-key"))]).try_build(), &text("key"));
    for costly in [limit().cost(2), limit().cost(6), limit().cost_by(|_| 1)] {
        assert_error(Limiter::builder(costly).try_build(), &text("cost"));
    }
}

#[test]
fn panics_name_the_value_and_the_remedy() {
    assert_eq!(panic_of(|| MemoryStore::new().max_keys(0)), "max_keys is 0: remember at least 1 key");
    let _ = MemoryStore::new().max_keys(1);
    assert_eq!(panic_of(|| CalendarWindow::monthly(1).from_day(32)), "no month has a day 32: use one from 1 to 31");
    assert_eq!(
        panic_of(|| Penalty::after(1_001, SECOND)),
        "a lockout begins after 1001 denials: use 1 to 1,000, or leave the penalty out"
    );
    assert_eq!(
        panic_of(|| Limit::new("", FixedWindow::per_day(1))),
        "a limit's name is empty: give it 1 to 64 characters"
    );
    assert_eq!(
        panic_of(|| Limiter::new(Limit::new("x", FixedWindow::per_day(1)).soft(0))),
        "the limit \"x\" is soft by 0 %: use at least 1, or leave it hard"
    );
    assert_eq!(panic_of(|| key::header("x y")), "\"x y\" is not a header's name: use letters, digits and dashes");
}

/// Constants are checked at compile time.
#[test]
fn limits_can_be_constants() {
    const WINDOW: FixedWindow = FixedWindow::new(5, LONGEST);
    const LOG: SlidingLog = SlidingLog::per_minute(5);
    const SLIDING: SlidingWindow = SlidingWindow::per_hour(5).buckets(60);
    const COUNTER: SlidingWindowCounter = SlidingWindowCounter::per_day(5);
    const TOKENS: TokenBucket = TokenBucket::per_second(5).burst(20).at_intervals();
    const METER: LeakyBucket = LeakyBucket::new(5, 1, SECOND);
    static QUEUE: LeakyBucketQueue = LeakyBucketQueue::per_second(5).waiting(2);
    let names = ["window", "log", "sliding", "counter", "tokens", "meter", "queue"].into_iter();
    let algorithms =
        [WINDOW.into(), LOG.into(), SLIDING.into(), COUNTER.into(), TOKENS.into(), METER.into(), QUEUE.into()];
    let limiter = Limiter::new(
        names.zip(algorithms).map(|(name, algorithm): (_, tower_ratelimit::Algorithm)| Limit::new(name, algorithm)),
    );
    assert_eq!(limiter.limits()[4].algorithm().capacity(), 20);
    assert_eq!(limiter.limits()[6].algorithm().capacity(), 3, "two wait, one goes on");
}

/// A panic about a configuration names the line of the caller.
#[test]
fn panics_name_the_line_of_the_caller() {
    let lines: &[(&str, fn())] = &[
        ("Limit::new", || drop(Limit::new("", FixedWindow::per_day(1)))),
        ("Limiter::new", || drop(Limiter::new(Limit::new("a", FixedWindow::per_day(1)).cost(2)))),
        ("RateLimitLayer::new", || drop(RateLimitLayer::new(Limit::new("a", FixedWindow::per_day(1)).cost(2)))),
        ("LiveLimits::new", || drop(LiveLimits::new([Limit::new("a", FixedWindow::per_day(1)).cost(2)]))),
        ("AddressList::new", || drop(AddressList::new(key::peer_ip(), ["nowhere"]))),
        ("TokenBucket::per_second", || drop(Limit::new("a", TokenBucket::per_second(0)))),
    ];
    let place = Arc::new(Mutex::new(String::new()));
    let (noted, own) = (place.clone(), thread::current().id());
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != own {
            return;
        }
        *noted.lock().unwrap() = info.location().map_or_else(String::new, |location| location.file().to_owned());
    }));
    let places: Vec<_> = lines
        .iter()
        .map(|(what, call)| (*what, panic::catch_unwind(call).is_err(), place.lock().unwrap().clone()))
        .collect();
    panic::set_hook(before);
    for (what, has_panicked, place) in places {
        assert!(has_panicked && place == file!(), "{what} panics at {place:?}");
    }
}
